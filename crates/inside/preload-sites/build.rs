//! Link options of the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The handler of fork points into the library: it must stay when a program closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // As for the heap: precompiled parts of `core` refer to it where nothing is optimised.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym=rust_eh_personality=0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpagemill_sites.so");
}
