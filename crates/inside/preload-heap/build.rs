//! Link options of the preload library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Handlers of fork and of thread exit point into the library: it must stay when a program closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Precompiled parts of `core` refer to the unwinder's entry on some targets. Nothing here unwinds, and a definition
    // that programs could see would take the place of their own.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym=rust_eh_personality=0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpagemill_heap.so");
}
