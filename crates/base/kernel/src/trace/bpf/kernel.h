/* What the BPF programs need of the kernel: helpers by their number (bpf-helpers(7)), how maps are
 * declared, and the few fields of the kernel's structures that are read. `preserve_access_index`
 * makes the loader look the offsets up in the running kernel's BTF, so a dump of one kernel's
 * types is not needed. */
#ifndef PAGEMILL_BPF_KERNEL_H
#define PAGEMILL_BPF_KERNEL_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define KERNEL __attribute__((preserve_access_index))
#define inline_ static inline __attribute__((always_inline))

/* BTF-defined maps (libbpf's convention). */
#define VALUE(name, value) int(*name)[value]
#define TYPE(name, type) typeof(type) *name

enum {
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_PERCPU_HASH = 5,
	MAP_PERCPU_ARRAY = 6,
	MAP_RINGBUF = 27,
	MAP_TASK_STORAGE = 29,
};
enum { ANY = 0, NOEXIST = 1, NO_PREALLOC = 1, STORAGE_CREATE = 1, RING_NO_WAKEUP = 1 };

struct pt_regs;

struct sched_info {
	u64 run_delay; /* time that the task waited for a processor, ns */
} KERNEL;

struct task_struct {
	int pid;
	int tgid;
	unsigned long nvcsw; /* how often it gave its processor up to wait */
	struct sched_info sched_info;
} KERNEL;

/* Whether this kernel has a field. */
#define exists(field) __builtin_preserve_field_info(field, 2)

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static u64 (*now_ns)(void) = (void *)5;
static u32 (*cpu_number)(void) = (void *)8;
static u64 (*current_ids)(void) = (void *)14; /* process << 32 | thread */
static void *(*ring_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*ring_submit)(void *data, u64 flags) = (void *)132;
static void *(*task_storage)(void *map, struct task_struct *task, void *value, u64 flags) = (void *)156;
static struct task_struct *(*current_task)(void) = (void *)158;
static struct pt_regs *(*user_registers)(struct task_struct *task) = (void *)175;

#endif
