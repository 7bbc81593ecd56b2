//! `libpagemill.so`: the C malloc family over the compacting heap; glue only.
#![no_std]

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
