/* The calls of the program that change its mappings, as the mapper and threads of the program make them: what is mapped
 * becomes part of the file in memory, what goes is noted and punched out of it.
 *
 * A part of resident.c, which includes it after what it knows of mappings and of pages that leave. Each `do_` takes the six
 * arguments of the call and says whether it is done, with its result, is to go on as it stands, or is the tracer's to answer.
 */
static void respond(u64 id, i64 result, int go_on)
{
	struct response *response = &control->response;
	response->id = id;
	response->value = failed(result) || go_on ? 0 : result;
	response->error = go_on || !failed(result) ? 0 : (i32)result;
	response->flags = go_on ? 1 : 0;
	call3(__NR_ioctl, control->listener_fd, 0xc0182101ul, response);
}

static int remember_private(u64 start, u64 length)
{
	u32 at = control->private_count;
	if (at == PRIVATE)
		return 0;
	control->private_files[at].base = start;
	control->private_files[at].length = up(length);
	store(&control->private_count, at + 1);
	return 1;
}

static int in_private(u64 start, u64 end)
{
	for (u32 i = 0; i < control->private_count; i++) {
		struct range *range = &control->private_files[i];
		if (range->base < end && start < range->base + range->length)
			return 1;
	}
	return 0;
}

#define MAP_SHARED 1
#define MAP_PRIVATE 2
#define MAP_FIXED 0x10
#define MAP_ANONYMOUS 0x20
#define MAP_GROWSDOWN 0x100
#define MAP_STACK 0x20000
#define MAP_HUGETLB 0x40000
#define PROT_WRITE 2

/* Of PROCMAP_QUERY. */
#define VMA_SHARED 8

enum { GO_ON, FORWARD, DONE, BUSY };
/* The number of a command that is no system call. */
#define DECIDE (-2)

/* Whether what a descriptor maps is a file's pages, which come back by a fault: a plain file, and not one by which a
 * driver shows memory of its own. */
static int of_file(i64 fd)
{
	static const u32 DRIVERS[] = { 0x9fa0 /* proc */, 0x62656572 /* sys */, 0x64626720 /* debug */,
				       0x74726163 /* trace */, 0x958458f6 /* hugetlb */ };
	struct stat file;
	struct statfs system;
	if (failed(call3(__NR_fstat, fd, &file, 0)) || (file.st_mode & 0170000) != 0100000 ||
	    failed(call3(__NR_fstatfs, fd, &system, 0)))
		return 0;
	for (u32 i = 0; i < sizeof DRIVERS / sizeof *DRIVERS; i++)
		if ((u32)system.f_type == DRIVERS[i])
			return 0;
	return 1;
}

/* Puts the bytes of a private writable mapping of a file into a fresh part of the memory file; DONE if that is all of
 * them. What the file does not have, behind its end or on a page that cannot be read, is zeros. Anything else than a plain
 * file is the tracer's to judge, and a descriptor that cannot be read the kernel's. */
static int fill(i64 fd, u64 from, u64 length, u64 offset)
{
	struct stat file;
	if (failed(call3(__NR_fstat, fd, &file, 0)) || (file.st_mode & 0170000) != 0100000)
		return FORWARD;
	for (u64 at = 0; at < length;) {
		u64 wanted = length - at < COPY ? length - at : COPY;
		i64 got = call(__NR_pread64, fd, (i64)control->copy, (i64)wanted, (i64)(from + at), 0, 0);
		if (got == -9)
			return GO_ON;
		if (got <= 0)
			break;
		if (call(__NR_pwrite64, control->memory_fd, (i64)control->copy, got, (i64)(offset + at), 0, 0) != got)
			return FORWARD;
		at += (u64)got;
	}
	return DONE;
}

static int do_mmap(u64 *a, i64 *result)
{
	u64 length = a[1], protection = a[2], flags = a[3];
	int private = (flags & 15) == MAP_PRIVATE, anonymous = !!(flags & MAP_ANONYMOUS);
	struct holes holes = { 0 };
	if (!length)
		return GO_ON;
	if (flags & (MAP_HUGETLB | (anonymous ? MAP_GROWSDOWN : 0))) {
		__atomic_fetch_add(&control->untraced, length, __ATOMIC_RELAXED);
		return GO_ON;
	}
	/* Its bytes, or zeros, go into the memory file. */
	int converted = private && (anonymous || protection & PROT_WRITE);
	u64 offset = converted ? fresh(length) : 0;
	if (flags & MAP_FIXED) {
		note(a[0], a[0] + up(length), 1);
		if (leave(a[0], a[0] + up(length), &holes) != a[0] + up(length))
			return FORWARD;
	}
	/* The tracer judges what it is, between two of its looks at the page tables. */
	if (!converted && !anonymous && !of_file((i32)a[4]))
		return FORWARD;
	if (converted && !anonymous) {
		int what = fill((i32)a[4], a[5], length, offset);
		if (what != DONE)
			return what;
	}
	if (converted) {
		flags = (flags & ~(u64)(MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK)) | MAP_SHARED;
		*result = call(__NR_mmap, (i64)a[0], (i64)length, (i64)protection, (i64)flags,
			       control->memory_fd, (i64)offset);
	} else {
		*result = call(__NR_mmap, (i64)a[0], (i64)length, (i64)protection, (i64)a[3], (i64)a[4], (i64)a[5]);
	}
	if (failed(*result))
		return DONE;
	punch_all(&holes);
	if (private && !converted && !remember_private((u64)*result, length))
		__atomic_fetch_add(&control->untraced, length, __ATOMIC_RELAXED);
	watch((u64)*result, length);
	return DONE;
}

static int do_munmap(u64 *a, i64 *result)
{
	u64 start = a[0], end = a[0] + up(a[1]);
	struct holes holes;
	if (start & (PAGE - 1) || !a[1] || end < start)
		return GO_ON;
	note(start, end, 1);
	*result = 0;
	while (start < end) {
		u64 next = leave(start, end, &holes);
		*result = call3(__NR_munmap, start, next - start, 0);
		if (failed(*result))
			return DONE;
		punch_all(&holes);
		start = next;
	}
	return DONE;
}

/* The same without the mapper: where nothing has to wait. */
static int unmap_here(u64 *a, i64 *result)
{
	u64 start = a[0], end = a[0] + up(a[1]);
	struct holes holes;
	if (start & (PAGE - 1) || !a[1] || end < start || !note(start, end, 0))
		return GO_ON;
	if (leave(start, end, &holes) != end || !room_to_put_off(&holes))
		return GO_ON;
	*result = call3(__NR_munmap, start, end - start, 0);
	if (!failed(*result))
		put_off(&holes);
	return DONE;
}

/* Whether a mapping of ours may not grow into the file behind it: something lies there that is not its own zeros. It may
 * be a neighbour's, or what could not be punched when it left because a child read it. */
static int blocked(struct query *query, u64 old, u64 old_length, u64 length)
{
	struct query next;
	u64 behind = query->offset + (old - query->start) + old_length;
	i64 data = call3(__NR_lseek, control->memory_fd, behind, 3);
	return control->split || (!failed(data) && (u64)data < behind + length - old_length) ||
	       old + old_length < query->end ||
	       (find(query->end, &next) > 0 && next.start == query->end && ours(&next) &&
		next.offset == query->offset + (query->end - query->start));
}

/* Grows such a mapping by moving it, bytes and all, to a fresh part of the file. */
static int grow_elsewhere(struct query *query, u64 old, u64 old_length, u64 length, u64 flags, i64 *result)
{
	u64 argument[2] = { old, old_length };
	i64 done;
	*result = -12;
	/* Only if it may move, anywhere, and can be read and written. */
	if ((flags & 3) != 1 || (query->vma_flags & 3) != 3 || query->end < old + old_length)
		return DONE;
	i64 to = call(__NR_mmap, 0, (i64)length, (i64)(query->vma_flags & 7), MAP_SHARED, control->memory_fd,
		      (i64)fresh(length));
	if (failed(to))
		return DONE;
	volatile u64 *from = (volatile u64 *)old, *into = (volatile u64 *)to;
	for (u64 word = 0; word < old_length / 8; word++)
		into[word] = from[word];
	zap((u64)to, length);
	watch((u64)to, length);
	do_munmap(argument, &done);
	*result = to;
	return DONE;
}

static int do_mremap(u64 *a, i64 *result)
{
	u64 old = a[0], old_length = up(a[1]), length = up(a[2]), flags = a[3];
	struct query query;
	struct holes holes = { 0 };
	if (old & (PAGE - 1) || !length)
		return GO_ON;
	if (find(old, &query) <= 0 || query.start > old)
		return GO_ON;
	/* Both would leave two mappings of one page of the file where the program wants two pages. */
	if (ours(&query) && (flags & 4 || !old_length)) {
		*result = -22;
		return DONE;
	}
	if (ours(&query) && length > old_length && blocked(&query, old, old_length, length))
		return grow_elsewhere(&query, old, old_length, length, flags, result);
	note(old, old + old_length, 1);
	/* It may be one that the tracer knows by its place. */
	if (load(&control->apart) && !ours(&query) && query.vma_flags & VMA_SHARED)
		return FORWARD;
	if (flags & 2) {
		note(a[4], a[4] + length, 1);
		if (leave(a[4], a[4] + length, &holes) != a[4] + length)
			return FORWARD;
	}
	*result = call(__NR_mremap, (i64)old, (i64)old_length, (i64)length, (i64)flags, (i64)a[4], 0);
	if (failed(*result))
		return DONE;
	punch_all(&holes);
	if (ours(&query)) {
		if (length < old_length)
			punch(query.offset + (old - query.start) + length, old_length - length);
		if ((u64)*result != old)
			zap((u64)*result, length);
	} else if (in_private(old, old + old_length)) {
		remember_private((u64)*result, length);
	}
	watch((u64)*result, length);
	return DONE;
}

static int do_brk(u64 *a, i64 *result)
{
	u64 wanted = up(a[0]), end = control->break_end;
	struct holes holes = { 0 };
	if (a[0] && wanted < end && wanted >= control->break_start) {
		note(wanted, end, 1);
		if (leave(wanted, end, &holes) != end)
			return FORWARD;
	}
	*result = call3(__NR_brk, a[0], 0, 0);
	u64 now = up((u64)*result);
	u64 offset = control->break_offset - control->break_start;
	if (now > end) {
		i64 mapped = call(__NR_mmap, (i64)end, (i64)(now - end), 3, MAP_SHARED | MAP_FIXED,
				  control->memory_fd, (i64)(offset + end));
		if (failed(mapped))
			__atomic_fetch_add(&control->untraced, now - end, __ATOMIC_RELAXED);
		else
			watch(end, now - end);
	} else if (now < end) {
		/* What grows here next is a new part of the file: somebody may still read the old one. */
		punch_all(&holes);
		control->break_offset = fresh(STRIDE) + (control->break_start & (STRIDE - 1));
	}
	control->break_end = now;
	return DONE;
}

static int do_madvise(u64 *a, i64 *result)
{
	u64 at = a[0], end = a[0] + up(a[1]), advice = a[2];
	struct query query;
	if (at & (PAGE - 1) || end < at)
		return GO_ON;
	/* DONTFORK, DOFORK, WIPEONFORK, KEEPONFORK: what a shared mapping does not do by itself. */
	if (advice == 10 || advice == 11 || advice == 18 || advice == 19)
		return FORWARD;
	note(at, end, 1);
	*result = 0;
	while (at < end) {
		int found = find(at, &query);
		if (found < 0)
			return FORWARD;
		if (!found || query.start >= end) {
			*result = -12;
			break;
		}
		u64 from = query.start > at ? query.start : at;
		u64 to = query.end < end ? query.end : end;
		if (query.start > at)
			*result = -12;
		/* DONTNEED means zeros from now on; FREE allows them. */
		if (ours(&query) && load(&control->frozen))
			call(__NR_mmap, (i64)from, (i64)(to - from), (i64)(query.vma_flags & 7), MAP_SHARED | MAP_FIXED,
			     control->memory_fd, (i64)fresh(to - from)), watch(from, to - from);
		else if (ours(&query))
			punch(query.offset + (from - query.start), to - from);
		else if (failed(call3(__NR_madvise, from, to - from, advice)))
			*result = -22;
		at = to;
	}
	return DONE;
}

static int do_close_range(u64 *a, i64 *result)
{
	u32 first = (u32)a[0], last = (u32)a[1], own = (u32)control->own_fds, after = own + OWN_FDS;
	/* UNSHARE makes a table of the caller's own. */
	if (first > last || last < own || first >= after || a[2] & 2)
		return GO_ON;
	*result = first < own ? call3(__NR_close_range, first, own - 1, a[2]) : 0;
	if (!failed(*result) && last >= after)
		*result = call3(__NR_close_range, after, last, a[2]);
	return DONE;
}

/* Without a tracer the program goes on by itself: its memory becomes private again, over the file that
 * nobody writes any more, and new mappings are what the program asks for. */
static void let_go(void)
{
	struct query query;
	u64 at = 0;
	store(&control->orphan, KEPT);
	while (find(at, &query) > 0) {
		if (ours(&query) && query.vma_flags & VMA_SHARED)
			call(__NR_mmap, (i64)query.start, (i64)(query.end - query.start), (i64)(query.vma_flags & 7),
			     MAP_PRIVATE | MAP_FIXED, control->memory_fd, (i64)query.offset);
		at = query.end;
	}
}

/* Whether the program still has the memory that we share: it has not executed another one. */
static int same_memory(void)
{
	/* 1: KCMP_VM. A kernel that cannot tell says an error. */
	return call(__NR_kcmp, control->process, control->mapper_process, 1, 0, 0, 0) <= 0;
}

/* DONTNEED means zeros, not what the file holds. */
static int orphan_madvise(u64 *a, i64 *result)
{
	u64 at = a[0], end = a[0] + up(a[1]);
	struct query query;
	if (at & (PAGE - 1) || end < at || (a[2] != 4 && a[2] != ADVISE_LOCKED))
		return GO_ON;
	*result = 0;
	while (at < end && find(at, &query) > 0 && query.start < end) {
		u64 from = query.start > at ? query.start : at;
		u64 to = query.end < end ? query.end : end;
		if (ours(&query))
			call(__NR_mmap, (i64)from, (i64)(to - from), (i64)(query.vma_flags & 7),
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		else
			call3(__NR_madvise, from, to - from, a[2]);
		at = to;
	}
	return DONE;
}

static int decide(struct notification *notification, i64 *result)
{
	u64 *a = notification->argument;
	u32 orphan = load(&control->orphan);
	punch_put_off();
	if (orphan && notification->number == __NR_close_range)
		return same_memory() ? do_close_range(a, result) : GO_ON;
	if (orphan)
		return orphan == KEPT && notification->number == __NR_madvise && same_memory() ?
			       orphan_madvise(a, result) : GO_ON;
	switch (notification->number) {
	case __NR_mmap: return do_mmap(a, result);
	case __NR_munmap: return do_munmap(a, result);
	case __NR_mremap: return do_mremap(a, result);
	case __NR_brk: return do_brk(a, result);
	case __NR_madvise: return do_madvise(a, result);
	case __NR_close_range: return do_close_range(a, result);
	case __NR_mprotect:
		return in_private(a[0], a[0] + up(a[1])) ? FORWARD : GO_ON;
	default: return FORWARD;
	}
}
