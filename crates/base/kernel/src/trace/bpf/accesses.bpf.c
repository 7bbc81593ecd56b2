/* Page faults as accesses: when, who, where from, which byte, reading or writing.
 *
 * The tracer drops page table entries; the next access to such a page faults once, and the fault is
 * written down here. Nothing is timed and nothing is paired, so the programs have no state.
 *
 * Always true: a fault of a followed process on a user address is in the ring exactly once, or counted
 * as lost; so is one that the kernel makes without an exception for a futex.
 */
#include "kernel.h"

char terms[] SEC("license") = "Dual MIT/GPL";

/* Mirrored in `bpf::accesses`. The low bits are the processor's error code. */
enum { IN_KERNEL = 1u << 31, CPU_SHIFT = 16, PROCESSES = 1 << 22 };

struct access {
	u64 time;
	u64 address;
	u64 instruction;
	u32 thread;
	u32 what; /* error code | processor << 16 | IN_KERNEL */
	u64 process;
};

struct pt_regs {
	unsigned long r8;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
	unsigned long ip;
} KERNEL;

enum { ERROR_WRITE = 2 };

/* A bit for each number that a process can have: looking one up is an addition, not a hash. */
struct {
	VALUE(type, MAP_ARRAY);
	VALUE(max_entries, PROCESSES / 64);
	TYPE(key, u32);
	TYPE(value, u64);
} processes SEC(".maps");

struct {
	VALUE(type, MAP_PERCPU_ARRAY);
	VALUE(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u64);
} lost SEC(".maps");

struct {
	VALUE(type, MAP_RINGBUF);
	VALUE(max_entries, 64 << 20);
} accesses SEC(".maps");

inline_ void note(unsigned long address, u64 instruction, unsigned long error, u32 in_kernel)
{
	u64 ids = current_ids();
	u32 process = ids >> 32, zero = 0, at = process / 64;
	u64 *followed = map_lookup(&processes, &at);
	if (!followed || !(*followed >> (process % 64) & 1))
		return;
	struct access *access = ring_reserve(&accesses, sizeof(*access), 0);
	if (!access) {
		u64 *count = map_lookup(&lost, &zero);
		if (count)
			(*count)++;
		return;
	}
	access->time = now_ns();
	access->address = address;
	access->instruction = instruction;
	access->thread = ids;
	access->process = process;
	access->what = (error & 0xffff) | (cpu_number() & 0x7fff) << CPU_SHIFT | in_kernel;
	ring_submit(access, RING_NO_WAKEUP);
}

SEC("tp_btf/page_fault_user")
int user(u64 *arguments)
{
	note(arguments[0], ((struct pt_regs *)arguments[1])->ip, arguments[2], 0);
	return 0;
}

SEC("tp_btf/page_fault_kernel")
int in_kernel(u64 *arguments)
{
	/* Faults on the kernel's own addresses are not the program's. */
	if ((long)arguments[0] > 0)
		note(arguments[0], ((struct pt_regs *)arguments[1])->ip, arguments[2], IN_KERNEL);
	return 0;
}

/* A page that the kernel takes for itself it maps, or makes writable, without an exception. In a call about a futex
 * that processes may share the lock of the address space is taken only if the word's page is not there for writing, and
 * then it is made so. */
SEC("tp_btf/mmap_lock_start_locking")
int locks(u64 *arguments)
{
	enum { FUTEX = 202, PRIVATE = 128, COMMANDS = 127 };
	/* FUTEX_REQUEUE, FUTEX_CMP_REQUEUE, FUTEX_WAKE_OP, FUTEX_WAIT_REQUEUE_PI, FUTEX_CMP_REQUEUE_PI */
	const unsigned long of_two = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 11 | 1 << 12;
	struct pt_regs *registers = user_registers(current_task());
	unsigned long operation = registers->si;
	if (registers->orig_ax != FUTEX || operation & PRIVATE)
		return 0;
	note(registers->di, registers->ip, ERROR_WRITE, IN_KERNEL);
	if ((operation & COMMANDS) < 32 && of_two >> (operation & COMMANDS) & 1)
		note(registers->r8, registers->ip, ERROR_WRITE, IN_KERNEL);
	return 0;
}
