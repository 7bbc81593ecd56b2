/* Page fault latency and what the time went into, without kprobes.
 *
 *   enter  page_fault_user / page_fault_kernel      (tracepoints)      or fentry of handle_mm_fault
 *   events in between, of the same thread: pages allocated, compaction, reclaim, locks waited for,
 *          counters of resident pages (which say anonymous, file, shared memory)
 *   leave  software event PAGE_FAULTS_MIN / _MAJ (perf) at the end of handle_mm_fault, or its fexit
 *
 * A fault is counted in a log-linear histogram under its flags, always; one that took `threshold_ns`
 * or longer is also put into the ring with its details. Shorter ones of a thread are summed up, and the
 * sum is put there each time that it reaches `sum_ns`, if they were made within `sum_within_ns`.
 *
 * Always true: a fault that left is in the histogram exactly once, or in one of the loss counters.
 * No moment of a fault is in two of its parts (compaction, reclaim, locks, a processor waited for, after
 * the last allocation).
 * The state of a thread is its own (task storage), so nothing is locked and it dies with the thread.
 */
#include "kernel.h"

char terms[] SEC("license") = "Dual MIT/GPL";

/* Mirrored in `model::fault::Flags`. The order of the largest page allocated is in bits 24 to 27. */
enum {
	WRITE = 1 << 0,
	PROTECTION = 1 << 1,
	EXECUTE = 1 << 2,
	IN_KERNEL = 1 << 3,
	MAJOR = 1 << 4,
	HUGE = 1 << 5,
	LARGE = 1 << 6,
	BASE = 1 << 7,
	COMPACTION = 1 << 8,
	RECLAIM = 1 << 9,
	STOLEN = 1 << 10,
	HUGE_FAILED = 1 << 11,
	ANONYMOUS = 1 << 12,
	FILE_BACKED = 1 << 13,
	SHARED_MEMORY = 1 << 14,
	SWAP = 1 << 15,
	SLEPT = 1 << 16,
	ORDER_SHIFT = 24,
};

enum { IN_COMPACTION = 1, IN_RECLAIM = 2 };

enum { UNMATCHED, RING_FULL, HISTOGRAM_FULL, RECORDED, COUNTERS };

/* Set by the loader before the programs are loaded. */
const volatile u64 threshold_ns = 0;
const volatile u64 sum_ns = 0;
const volatile u64 sum_within_ns = 0;
const volatile u32 huge_order = 9;

struct fault {
	u64 began;
	u64 address;
	u64 allocated; /* when the last page was allocated */
	u64 before;    /* what was known of the time until then: parts, the processor's among them */
	u64 stalled;   /* when the compaction, reclaim or wait that is under way began */
	u64 stall;     /* IN_COMPACTION, IN_RECLAIM, or the address of the lock that is waited for */
	u64 idle;      /* the thread's `run_delay` at the beginning, and at that of the stall */
	u64 stall_idle;
	u64 sleeps; /* the thread's `nvcsw` at the last allocation, and what stalls added since; and that at a stall's begin */
	u64 stall_sleeps;
	u64 compaction;
	u64 reclaim;
	u64 locks;
	u64 left; /* `departures` when its process was found to be followed */
	u32 flags;
	u32 order;
	/* Of the short faults since then: */
	u64 since;
	u64 took;
	u64 faults;
};

/* The reader tells it from a detail by its size. */
struct sum {
	u64 ended;
	u64 span;
	u64 took;
	u64 faults;
	u32 process;
	u32 thread;
};

struct detail {
	u64 ended;
	u64 latency;
	u64 address;
	u64 after_allocation;
	u64 compaction;
	u64 reclaim;
	u64 locks;
	u64 processor; /* waited for */
	u32 process;
	u32 thread;
	u32 flags;
	u32 cpu;
};

struct bucket {
	u32 flags;
	u32 index;
};

struct {
	VALUE(type, MAP_TASK_STORAGE);
	VALUE(map_flags, NO_PREALLOC);
	TYPE(key, int);
	TYPE(value, struct fault);
} threads SEC(".maps");

/* The processes that are traced; forks of theirs are added as they appear, and all are taken out when they are gone. */
struct {
	VALUE(type, MAP_HASH);
	VALUE(max_entries, 8192);
	TYPE(key, u32);
	TYPE(value, u32);
} processes SEC(".maps");

/* How often a process has been left: then each thread looks again whether its own is followed. */
struct {
	VALUE(type, MAP_ARRAY);
	VALUE(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, u64);
} departures SEC(".maps");

struct {
	VALUE(type, MAP_PERCPU_HASH);
	VALUE(max_entries, 16384);
	TYPE(key, struct bucket);
	TYPE(value, u64);
} histogram SEC(".maps");

struct {
	VALUE(type, MAP_PERCPU_ARRAY);
	VALUE(max_entries, COUNTERS);
	TYPE(key, u32);
	TYPE(value, u64);
} counters SEC(".maps");

struct {
	VALUE(type, MAP_RINGBUF);
	VALUE(max_entries, 4 << 20);
} details SEC(".maps");

inline_ void count(u32 which)
{
	u64 *value = map_lookup(&counters, &which);
	if (value)
		(*value)++;
}

/* Log-linear: 32 buckets for each power of two, exact below 32. Mirrored in `model::latency`. */
inline_ u32 bucket_of(u64 value)
{
	u32 exponent = 0;
	u64 rest = value;
	if (value < 32)
		return value;
	if (rest >> 32) { exponent += 32; rest >>= 32; }
	if (rest >> 16) { exponent += 16; rest >>= 16; }
	if (rest >> 8) { exponent += 8; rest >>= 8; }
	if (rest >> 4) { exponent += 4; rest >>= 4; }
	if (rest >> 2) { exponent += 2; rest >>= 2; }
	if (rest >> 1) exponent += 1;
	return ((exponent - 4) << 5) | ((value >> (exponent - 5)) & 31);
}

/* Whether the current process is traced. */
inline_ int followed(void)
{
	u32 process = current_ids() >> 32;
	return map_lookup(&processes, &process) != 0;
}

/* The state of the current thread if a fault of it is under way. */
inline_ struct fault *under_way(void)
{
	struct fault *fault = task_storage(&threads, current_task(), 0, 0);
	return fault && fault->began ? fault : 0;
}

/* How long the current thread has waited for a processor in all its life; 0 where the kernel does not count it. */
inline_ u64 idle_so_far(void)
{
	struct task_struct *task = current_task();
	return exists(task->sched_info.run_delay) ? task->sched_info.run_delay : 0;
}

/* A stall begins; one that is in another is a part of that. */
inline_ int begin_stall(u64 stall, u32 flags)
{
	struct fault *fault = under_way();
	if (!fault || fault->stalled)
		return 0;
	fault->flags |= flags;
	fault->stall = stall;
	fault->stall_idle = idle_so_far();
	fault->stall_sleeps = current_task()->nvcsw;
	fault->stalled = now_ns();
	return 0;
}

/* Adds the time of the stall that ends to a part, without what the thread waited for a processor meanwhile. */
inline_ int end_stall(struct fault *fault, u64 stall, u64 *part)
{
	u64 took, idle;
	if (!fault->stalled || fault->stall != stall)
		return 0;
	took = now_ns() - fault->stalled;
	idle = idle_so_far() - fault->stall_idle;
	fault->sleeps += current_task()->nvcsw - fault->stall_sleeps;
	fault->stalled = 0;
	*part += took > idle ? took - idle : 0;
	return 0;
}

/* What of a fault's time is known so far, but for clearing. */
inline_ u64 known(struct fault *fault)
{
	return fault->compaction + fault->reclaim + fault->locks + idle_so_far() - fault->idle;
}

inline_ int enter(u64 address, u32 flags)
{
	struct task_struct *task = current_task();
	struct fault *fault = task_storage(&threads, task, 0, 0);
	u32 first = 0;
	u64 *left = map_lookup(&departures, &first);
	if (!left)
		return 0;
	/* A thread keeps its state when its process is followed no longer. */
	if (!fault || fault->left != *left) {
		if (!followed())
			return 0;
		fault = task_storage(&threads, task, 0, STORAGE_CREATE);
		if (!fault)
			return 0;
		fault->left = *left;
	}
	fault->address = address;
	fault->allocated = 0;
	fault->stalled = 0;
	fault->stall = 0;
	fault->compaction = 0;
	fault->reclaim = 0;
	fault->locks = 0;
	fault->idle = idle_so_far();
	fault->flags = flags;
	fault->order = 0;
	fault->began = now_ns();
	return 0;
}

/* Adds a short fault that ends now to those of its thread. */
inline_ int add_short(struct fault *fault, u64 now, u64 latency)
{
	struct sum *sum;
	u64 ids;
	if (now - fault->since > sum_within_ns) {
		fault->since = now - latency;
		fault->took = 0;
		fault->faults = 0;
	}
	fault->took += latency;
	fault->faults++;
	if (fault->took < sum_ns)
		return 0;
	sum = ring_reserve(&details, sizeof(*sum), 0);
	if (!sum) {
		count(RING_FULL);
	} else {
		ids = current_ids();
		sum->ended = now;
		sum->span = now - fault->since;
		sum->took = fault->took;
		sum->faults = fault->faults;
		sum->process = ids >> 32;
		sum->thread = ids;
		ring_submit(sum, RING_NO_WAKEUP);
	}
	fault->since = 0;
	return 0;
}

inline_ int leave(struct fault *fault, u32 more)
{
	u64 now = now_ns();
	u64 one = 1, latency, *seen;
	struct bucket bucket;
	struct detail *detail;

	/* The events come from every process. */
	if (!fault || !fault->began) {
		if (followed())
			count(UNMATCHED);
		return 0;
	}
	latency = now - fault->began;
	fault->began = 0;
	/* It waited for neither a lock nor a file: for another thread or process, of a userfaultfd say. */
	if (fault->allocated && !(more & MAJOR) && current_task()->nvcsw != fault->sleeps)
		more |= SLEPT;
	bucket.flags = fault->flags | more | fault->order << ORDER_SHIFT;
	bucket.index = bucket_of(latency);
	seen = map_lookup(&histogram, &bucket);
	if (seen)
		(*seen)++;
	else if (map_update(&histogram, &bucket, &one, NOEXIST))
		count(HISTOGRAM_FULL);
	if (latency < threshold_ns)
		return add_short(fault, now, latency);
	detail = ring_reserve(&details, sizeof(*detail), 0);
	if (!detail) {
		count(RING_FULL);
		return 0;
	}
	u64 ids = current_ids();
	detail->ended = now;
	detail->latency = latency;
	detail->address = fault->address;
	u64 beside = known(fault) - fault->before, after = now - fault->allocated;
	detail->after_allocation = fault->allocated && after > beside ? after - beside : 0;
	detail->compaction = fault->compaction;
	detail->reclaim = fault->reclaim;
	detail->locks = fault->locks;
	detail->processor = idle_so_far() - fault->idle;
	detail->process = ids >> 32;
	detail->thread = ids;
	detail->flags = bucket.flags;
	detail->cpu = cpu_number();
	ring_submit(detail, RING_NO_WAKEUP);
	count(RECORDED);
	return 0;
}

/* x86 error code: 1 the page is there but protected, 2 write, 16 instruction fetch. */
inline_ u32 flags_of(u64 error)
{
	return (error & 2 ? WRITE : 0) | (error & 1 ? PROTECTION : 0) | (error & 16 ? EXECUTE : 0);
}

SEC("tp_btf/page_fault_user") int enter_user(u64 *arguments)
{
	return enter(arguments[0], flags_of(arguments[2]));
}

SEC("tp_btf/page_fault_kernel") int enter_kernel(u64 *arguments)
{
	/* Addresses of the kernel itself are not faults of the process. */
	if ((long long)arguments[0] < 0)
		return 0;
	return enter(arguments[0], flags_of(arguments[2]) | IN_KERNEL);
}

SEC("perf_event") int leave_minor(void *context)
{
	return leave(task_storage(&threads, current_task(), 0, 0), 0);
}

SEC("perf_event") int leave_major(void *context)
{
	return leave(task_storage(&threads, current_task(), 0, 0), MAJOR);
}

/* handle_mm_fault(vma, address, flags, regs): without regs it serves get_user_pages, which perf does
 * not count as a fault either. */
SEC("fentry/handle_mm_fault") int enter_function(u64 *arguments)
{
	u64 asked = arguments[2];
	struct fault *fault;
	u32 flags = (asked & 1 ? WRITE : 0) | (asked & 0x100 ? EXECUTE : 0) | (asked & 0x40 ? 0 : IN_KERNEL);
	if (!arguments[3])
		return 0;
	/* Called again because a lock had to be dropped: still the same fault. */
	fault = under_way();
	if (fault && fault->address == arguments[1])
		return 0;
	return enter(arguments[1], flags);
}

SEC("fexit/handle_mm_fault") int leave_function(u64 *arguments)
{
	u64 result = arguments[4];
	struct fault *fault = under_way();
	if (!fault || !arguments[3] || (result & 0x400)) /* VM_FAULT_RETRY */
		return 0;
	if (result & (0x1 | 0x2 | 0x10 | 0x20 | 0x40 | 0x800)) { /* VM_FAULT_ERROR */
		fault->began = 0;
		return 0;
	}
	/* VM_FAULT_MAJOR, or FAULT_FLAG_TRIED. */
	return leave(fault, (result & 0x4) || (arguments[2] & 0x20) ? MAJOR : 0);
}

SEC("tp_btf/mm_page_alloc") int allocated(u64 *arguments)
{
	struct fault *fault = under_way();
	u32 order = arguments[1];
	if (!fault)
		return 0;
	if (!arguments[0]) {
		if (order >= huge_order)
			fault->flags |= HUGE_FAILED;
		return 0;
	}
	/* Migration type 1 is movable: the program's pages. Page tables and the like are not. */
	if (arguments[3] == 1) {
		fault->flags |= order == 0 ? BASE : order >= huge_order ? HUGE : LARGE;
		if (order > fault->order)
			fault->order = order & 15;
		fault->before = known(fault);
		fault->sleeps = current_task()->nvcsw;
		fault->allocated = now_ns();
	}
	return 0;
}

SEC("tp_btf/mm_compaction_begin") int compaction_begins(u64 *arguments)
{
	return begin_stall(IN_COMPACTION, COMPACTION);
}

SEC("tp_btf/mm_compaction_end") int compaction_ends(u64 *arguments)
{
	struct fault *fault = under_way();
	return fault ? end_stall(fault, IN_COMPACTION, &fault->compaction) : 0;
}

inline_ int reclaim_ends_here(void)
{
	struct fault *fault = under_way();
	return fault ? end_stall(fault, IN_RECLAIM, &fault->reclaim) : 0;
}

/* contention_begin(lock, flags): a lock of any kind is held by somebody else. */
SEC("tp_btf/contention_begin") int lock_wait_begins(u64 *arguments)
{
	return begin_stall(arguments[0], 0);
}

SEC("tp_btf/contention_end") int lock_wait_ends(u64 *arguments)
{
	struct fault *fault = under_way();
	return fault ? end_stall(fault, arguments[0], &fault->locks) : 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin") int reclaim_begins(u64 *arguments)
{
	return begin_stall(IN_RECLAIM, RECLAIM);
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end") int reclaim_ends(u64 *arguments)
{
	return reclaim_ends_here();
}

/* At the limit of a control group. */
SEC("tp_btf/mm_vmscan_memcg_reclaim_begin") int group_reclaim_begins(u64 *arguments)
{
	return begin_stall(IN_RECLAIM, RECLAIM);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end") int group_reclaim_ends(u64 *arguments)
{
	return reclaim_ends_here();
}

SEC("tp_btf/mm_page_alloc_extfrag") int stolen(u64 *arguments)
{
	struct fault *fault = under_way();
	if (fault)
		fault->flags |= STOLEN;
	return 0;
}

/* rss_stat(mm, member): 0 file, 1 anonymous, 2 swapped out, 3 shared memory. */
SEC("tp_btf/rss_stat") int resident(u64 *arguments)
{
	struct fault *fault = under_way();
	u32 member = arguments[1];
	if (fault)
		fault->flags |= member == 0 ? FILE_BACKED : member == 1 ? ANONYMOUS : member == 2 ? SWAP : SHARED_MEMORY;
	return 0;
}

/* sched_process_fork(parent, child) */
SEC("tp_btf/sched_process_fork") int forked(u64 *arguments)
{
	struct task_struct *child = (struct task_struct *)arguments[1];
	u32 process = current_ids() >> 32;
	u32 born;
	if (!map_lookup(&processes, &process))
		return 0;
	born = child->tgid;
	if (born != process)
		map_update(&processes, &born, &process, ANY);
	return 0;
}

/* sched_process_free(task): the last of a process is its first thread. */
SEC("tp_btf/sched_process_free") int gone(u64 *arguments)
{
	struct task_struct *task = (struct task_struct *)arguments[0];
	u32 process = task->tgid;
	if (task->pid == process)
		map_delete(&processes, &process);
	return 0;
}
