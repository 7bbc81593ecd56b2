//! Link options of the preload library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Handlers of fork and of thread exit point into the library: it must stay when a program closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpagemill.so");
}
