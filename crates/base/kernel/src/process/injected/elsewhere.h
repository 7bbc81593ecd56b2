/* Calls of another process than the mapper's own, without a tracer. The filter and its listener are inherited, so any
 * mapper may receive the call of any process; it can change the mappings of its own only.
 *
 *  the caller's memory                    a fork                      drops pages              any other call
 *  ------------------------------------   -------------------------   ----------------------   --------------
 *  its own: no memory file of ours open   goes on                     goes on                  goes on
 *  private, over the file: parted by      goes on                     zeros are written where  goes on
 *   its helpers, or a child's that                                     it has data
 *   nobody adopted
 *  shared with the file, a helper of      waits: it is parted within  the same                 goes on
 *   it lives                               two seconds
 *  shared, both helpers were killed       waits: the keeper makes it  the same                 goes on
 *                                          the caller's own, and the
 *                                          call is made again. EAGAIN
 *                                          where that was killed, too
 *  not to be looked into (Yama)           goes on once no mapping of  waits whether it becomes goes on
 *                                          it is shared; else EAGAIN   its own; else EINVAL
 *
 * Who has called and whose helpers live does not matter further: what counts is what its mappings are, which no tracer
 * changes any more. The mapper's own process may have ended meanwhile: a mapper ends between two calls.
 *
 * A part of injected.c, which includes it last.
 */

#define MOMENTS_OF_FORK 1500
#define MOMENTS_OF_DROP 150
#define SEEK_DATA 3
#define SEEK_HOLE 4
#define SWAPPED 16
#define EAGAIN 11
#define CLONE_VM 0x100

static void moment(void)
{
	i64 time[2] = { 0, 20000000 };
	call3(__NR_nanosleep, time, 0, 0);
}

static i64 open_of(u32 thread, const char *name, i64 flags)
{
	char path[64];
	append(put(path, "/proc/", thread), name);
	return call(__NR_openat, -100, (i64)path, flags | 02000000, 0, 0, 0);
}

static void path_of_memory(char *path, u32 thread)
{
	put(append(put(path, "/proc/", thread), "/fd"), "/", (u64)control->own_fds);
}

/* Whether another process has its own memory again: it has no memory file of ours open, which has the same number
 * there. */
static int is_alone(u32 thread)
{
	char path[64], name[16];
	path_of_memory(path, thread);
	return call(__NR_readlink, (i64)path, (i64)name, sizeof name, 0, 0, 0) == -2;
}

/* Reads a word of another process. Whether it can. */
static int peek(u32 thread, u64 address, void *into, u64 length)
{
	u64 here[2] = { (u64)into, length }, there[2] = { address, length };
	return call(__NR_process_vm_readv, thread, (i64)here, 1, (i64)there, 1, 0) == (i64)length;
}

/* The next mapping of another process, and whether it is one of a memory file of ours. */
static int find_elsewhere(i64 maps, u64 address, struct query *query, int *is_ours)
{
	static const char OURS[] = "/memfd:pagemill";
	char name[64];
	int found = find_in(maps, address, query, name, sizeof name);
	*is_ours = found > 0 && query->name_size >= sizeof OURS;
	for (u32 i = 0; *is_ours && i < sizeof OURS - 1; i++)
		*is_ours = name[i] == OURS[i];
	/* A name may be too long, or there is none. */
	return found < 0 ? find_in(maps, address, query, 0, 0) : found;
}

/* Whether another process has a shared mapping of a memory file, as far as can be seen. */
static int shares(u32 thread)
{
	struct query query;
	int is_ours, found, shared = 0;
	i64 maps = open_of(thread, "/maps", 0);
	if (failed(maps))
		return 1;
	for (u64 at = 0; !shared && (found = find_elsewhere(maps, at, &query, &is_ours)) > 0; at = query.end)
		shared = is_ours && query.vma_flags & VMA_SHARED;
	call3(__NR_close, maps, 0, 0);
	return shared || found < 0;
}

/* Whether a call makes a process with a copy of the memory. */
static int forks(struct notification *copy)
{
	u64 flags = copy->argument[0];
	if (copy->number == __NR_clone3 && !peek(copy->pid, copy->argument[0], &flags, sizeof flags))
		return 1;
	return copy->number == __NR_fork ||
	       ((copy->number == __NR_clone || copy->number == __NR_clone3) && !(flags & CLONE_VM));
}

static int is_under_way(u64 id)
{
	return !failed(call3(__NR_ioctl, control->listener_fd, 0x40082102ul, &id));
}

/* Whether a helper may be about to make a process's memory private, or to empty the file behind it: then a fork waits.
 * -1: it cannot be seen. */
static int is_to_be_parted(u32 thread)
{
	i32 process = 0;
	u32 orphan = 0;
	if (!peek(thread, (u64)&control->process, &process, sizeof process) ||
	    !peek(thread, (u64)&control->orphan, &orphan, sizeof orphan))
		return -1;
	/* A child that nobody adopted has its parent's page, and memory of its own. 1: KCMP_VM */
	if (failed(call3(__NR_tgkill, process, thread, 0)) && call(__NR_kcmp, process, thread, 1, 0, 0, 0))
		return 0;
	return orphan != KEPT && orphan != GIVEN_BACK;
}

/* Whether a fork may go on; or DONE: the caller has its answer. */
static int forked_elsewhere(struct notification *copy, i64 *result)
{
	for (u32 tries = 0; tries < MOMENTS_OF_FORK; tries++) {
		int waits = is_to_be_parted(copy->pid);
		if (is_alone(copy->pid) || (!waits && !shares(copy->pid)))
			return GO_ON;
		if (waits < 0 && tries >= MOMENTS_OF_DROP)
			break;
		moment();
		if (!is_under_way(copy->id))
			return GO_ON;
	}
	if (!shares(copy->pid))
		return GO_ON;
	*result = -EAGAIN;
	return DONE;
}

/* Another process, opened. */
struct other { i64 maps, memory, pages, file; };

/* Whether a page reads as zeros from now on, or cannot be read: it is a guard. */
static int zero_page(struct other *other, u64 at)
{
	static const char ZEROS[PAGE];
	u64 word;
	return call(__NR_pwrite64, other->memory, (i64)ZEROS, PAGE, (i64)at, 0, 0) == PAGE ||
	       call(__NR_pread64, other->memory, (i64)&word, sizeof word, (i64)at, 0, 0) != sizeof word;
}

static int zero_pages(struct other *other, u64 start, u64 end)
{
	int all = 1;
	for (u64 at = start; at < end; at += PAGE)
		all &= zero_page(other, at);
	return all;
}

/* What of a mapping is in the file. */
static int zero_data(struct other *other, struct query *query, u64 start, u64 end)
{
	struct stat file;
	u64 distance = query->offset - query->start;
	int all = 1;
	if (failed(call3(__NR_fstat, other->file, &file, 0)) || file.st_ino != query->inode)
		return 0;
	while (start < end) {
		i64 data = call3(__NR_lseek, other->file, start + distance, SEEK_DATA);
		if (failed(data) || (u64)data >= end + distance)
			break;
		i64 hole = call3(__NR_lseek, other->file, data, SEEK_HOLE);
		u64 to = failed(hole) || (u64)hole > end + distance ? end : (u64)hole - distance;
		all &= zero_pages(other, (u64)data - distance, to);
		start = to;
	}
	return all;
}

/* What of a range is in the page tables, or was: pages of its own, which the file may not have. */
static int zero_present(struct other *other, u64 start, u64 end)
{
	struct region found[32];
	int all = 1;
	while (start < end) {
		struct scan_argument scan = {
			.size = sizeof scan, .start = start, .end = end, .vec = (u64)found,
			.vec_len = sizeof found / sizeof *found, .any = PRESENT | SWAPPED, .returned = PRESENT,
		};
		i64 count = call3(__NR_ioctl, other->pages, PAGEMAP_SCAN, &scan);
		if (failed(count))
			return 0;
		for (i64 i = 0; i < count; i++)
			all &= zero_pages(other, found[i].start, found[i].end);
		start = scan.walk_end;
	}
	return all;
}

/* Has a range of another process read as zeros, as after MADV_DONTNEED, whatever its mappings are over. What the call
 * returns; -EINVAL: not all of it can be written. */
static i64 zero(struct other *other, u64 start, u64 end)
{
	struct query query;
	int is_ours, all = 1;
	i64 unmapped = 0;
	u64 at = start;
	while (at < end) {
		int found = find_elsewhere(other->maps, at, &query, &is_ours);
		if (found < 0)
			return -EINVAL;
		if (!found || query.start >= end)
			return all ? -ENOMEM : -EINVAL;
		u64 from = query.start > at ? query.start : at, to = query.end < end ? query.end : end;
		if (query.start > at)
			unmapped = -ENOMEM;
		if (is_ours)
			all &= zero_data(other, &query, from, to);
		if (is_ours || !query.inode)
			all &= zero_present(other, from, to);
		at = to;
	}
	return all ? unmapped : -EINVAL;
}

static i64 dropped(struct notification *copy)
{
	u32 thread = copy->pid;
	char path[64];
	u64 *a = copy->argument;
	path_of_memory(path, thread);
	struct other other = {
		open_of(thread, "/maps", 0), open_of(thread, "/mem", 2), open_of(thread, "/pagemap", 0),
		call(__NR_openat, -100, (i64)path, 02000000, 0, 0, 0),
	};
	i64 *opened = &other.maps, result = -EINVAL;
	if (!failed(other.maps) && !failed(other.memory) && !failed(other.pages) && !failed(other.file))
		result = zero(&other, a[0], a[0] + up(a[1]));
	for (u32 i = 0; i < sizeof other / sizeof *opened; i++)
		if (!failed(opened[i]))
			call3(__NR_close, opened[i], 0, 0);
	return result;
}

static int dropped_elsewhere(struct notification *copy, i64 *result)
{
	u64 *a = copy->argument;
	if (!drops(a) || a[0] & (PAGE - 1) || a[0] + up(a[1]) < a[0])
		return GO_ON;
	for (u32 tries = 0; tries < MOMENTS_OF_DROP; tries++) {
		if (is_alone(copy->pid))
			return GO_ON;
		*result = dropped(copy);
		if (*result != -EINVAL)
			return DONE;
		moment();
	}
	/* It would read what the file holds. */
	return is_alone(copy->pid) ? GO_ON : DONE;
}

static void answer_elsewhere(struct notification *copy)
{
	i64 result = 0;
	int what = GO_ON;
	if (copy->number == __NR_madvise)
		what = dropped_elsewhere(copy, &result);
	else if (forks(copy))
		what = forked_elsewhere(copy, &result);
	respond(copy->id, result, what != DONE);
}
