/* Writes 64 pages, one byte each, and ends: what the emulator is tried on. */
static volatile char memory[64 * 4096] __attribute__((aligned(4096)));

void _start(void)
{
    for (long i = 0; i < 64; i++)
        memory[i * 4096] = 1;
    __asm__ volatile("syscall" : : "a"(231), "D"(0) : "rcx", "r11", "memory");
    __builtin_unreachable();
}
