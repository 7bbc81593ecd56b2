/* The calls of the program that change its mappings, as the mapper and threads of the program make them: what is mapped
 * becomes part of the file in memory, what goes is noted and punched out of it.
 *
 * A part of injected.c, which includes it after what it knows of mappings and of pages that leave. Each `do_` takes the
 * six arguments of the call and says whether it is done, with its result, is to go on as it stands, or is the tracer's
 * to answer.
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

#define MAP_SHARED 1
#define MAP_PRIVATE 2
#define MAP_FIXED 0x10
#define MAP_ANONYMOUS 0x20
#define MAP_GROWSDOWN 0x100
#define MAP_NORESERVE 0x4000
#define MAP_STACK 0x20000
#define MAP_HUGETLB 0x40000
#define MAP_FIXED_NOREPLACE 0x100000
#define PROT_WRITE 2

/* Of PROCMAP_QUERY. */
#define VMA_WRITABLE 2
#define VMA_SHARED 8

#define EBADF 9
#define ENOMEM 12
#define EACCES 13
#define EINVAL 22

enum { GO_ON, FORWARD, DONE, BUSY };
/* Numbers of commands that are no system calls: a call is decided; as the tracer answers it. */
#define DECIDE (-2)
#define DECIDE_NOW (-3)

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

/* ---- limits: what is mapped for the program counts for the program */

#define RLIMIT_DATA 2
#define RLIMIT_AS 9
struct limit { u64 soft, hard; };

/* The kernel holds a call against its caller's limit: that is the program's from now on, or nobody's. */
static void take_address_limit(int of_program)
{
	struct limit limit, own;
	if (failed(call(__NR_prlimit64, 0, RLIMIT_AS, 0, (i64)&own, 0, 0)) ||
	    failed(call(__NR_prlimit64, control->process, RLIMIT_AS, 0, (i64)&limit, 0, 0)))
		return;
	own.soft = of_program && limit.soft < own.hard ? limit.soft : own.hard;
	call(__NR_prlimit64, 0, RLIMIT_AS, (i64)&own, 0, 0, 0);
}

/* Whether a mapping counts as data: private, or what is one of ours, writable, and not the stack. */
static int data_of(struct query *query)
{
	return query->vma_flags & VMA_WRITABLE && (ours(query) || !(query->vma_flags & VMA_SHARED)) &&
	       !(query->start <= control->stack && control->stack < query->end);
}

/* Whether `more` bytes of private writable memory are beyond RLIMIT_DATA, which the kernel does not hold against shared
 * mappings, when what is mapped from `start` to `end` has gone. */
static int beyond_data(u64 more, u64 start, u64 end)
{
	struct limit limit;
	struct query query;
	u64 bytes = up(more), allowed;
	if (failed(call(__NR_prlimit64, control->process, RLIMIT_DATA, 0, (i64)&limit, 0, 0)))
		return 0;
	/* As the kernel has it, for Valgrind. */
	allowed = limit.soft ? limit.soft : limit.hard;
	if (allowed == ~0ul)
		return 0;
	for (u64 at = 0; find(at, &query) > 0; at = query.end) {
		if (data_of(&query))
			bytes += query.end - query.start;
		if (query.start < end && start < query.end)
			bytes -= (query.end < end ? query.end : end) - (query.start > start ? query.start : start);
	}
	return (i64)bytes > (i64)(allowed & ~(PAGE - 1));
}

/* ---- calls */

/* A writable part of a program's image, as loaders and emulators map it: it becomes part of the memory file. What the
 * program writes to any other file's pages is its own, and the pages that it only reads are the file's. */
static int of_image(u64 *a, struct stat *file)
{
	u32 magic = 0;
	return (file->st_mode & 0170000) == 0100000 && a[3] & MAP_FIXED && control->segment_count < SEGMENTS &&
	       call(__NR_pread64, (i32)a[4], (i64)&magic, 4, 0, 0, 0) == 4 && magic == 0x464c457f /* ELF */;
}

/* The bytes of a file where a shared mapping of the memory file is: zeros behind the file's end. */
static void fill(u64 start, u64 length, i64 fd, u64 from)
{
	for (u64 at = 0; at < length;) {
		i64 got = call(__NR_pread64, fd, (i64)(start + at), (i64)(length - at), (i64)(from + at), 0, 0);
		if (got <= 0)
			break;
		at += (u64)got;
	}
	zap(start, length);
}

static int do_munmap(u64 *a, i64 *result);

/* What a mapping replaces: noted, and gone or to be punched. */
static void replace(u64 start, u64 length, struct holes *holes)
{
	u64 range[2] = { start, length };
	i64 result;
	note(start, start + up(length), 1);
	if (leave(start, start + up(length), holes) != start + up(length)) {
		holes->count = 0;
		do_munmap(range, &result);
	}
}

/* Of a file that is no program's image, private writable memory comes into being between two looks of the tracer only
 * (`by_tracer`): an entry that it has seen and drops is never the program's own copy. */
static int do_mmap(u64 *a, i64 *result, int by_tracer)
{
	u64 length = a[1], protection = a[2], flags = a[3];
	int private = (flags & 15) == MAP_PRIVATE, anonymous = !!(flags & MAP_ANONYMOUS);
	int writable = private && protection & PROT_WRITE, image = 0;
	struct holes holes = { 0 };
	struct stat file = { 0 };
	if (!length)
		return GO_ON;
	if (flags & (MAP_HUGETLB | (anonymous ? MAP_GROWSDOWN : 0))) {
		__atomic_fetch_add(&control->untraced, length, __ATOMIC_RELAXED);
		return GO_ON;
	}
	if (writable && !anonymous) {
		/* What cannot be read the kernel refuses. */
		if (failed(call3(__NR_fstat, (i32)a[4], &file, 0)) || a[5] & (PAGE - 1) ||
		    call(__NR_pread64, (i32)a[4], (i64)&file, 0, 0, 0, 0) == -EBADF)
			return GO_ON;
		/* /dev/zero */
		anonymous = (file.st_mode & 0170000) == 0020000 && file.st_rdev == 0x105;
		image = of_image(a, &file);
		if (!anonymous && !image && !by_tracer)
			return FORWARD;
	}
	/* Of no plain file: the tracer makes it and judges what it is, between two of its looks at the page tables. What it
	 * replaces has gone by then. */
	if (!anonymous && !image && !of_file((i32)a[4])) {
		if (by_tracer && flags & MAP_FIXED) {
			replace(a[0], length, &holes);
			punch_all(&holes);
		}
		return FORWARD;
	}
	if (writable && beyond_data(length, a[0], flags & MAP_FIXED ? a[0] + up(length) : a[0])) {
		*result = -ENOMEM;
		return DONE;
	}
	/* Its bytes, or zeros, are in the memory file. */
	int converted = private && (anonymous || image);
	u64 offset = converted ? fresh(length) : 0;
	if (flags & MAP_FIXED)
		replace(a[0], length, &holes);
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
	if (image) {
		control->segments[control->segment_count++] =
			(struct segment){ offset, up(length), file.st_ino, a[5] };
		fill((u64)*result, length, (i32)a[4], a[5]);
	}
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

/* Whether a mapping of ours may not grow into the file behind it: something lies there that is not its own zeros, or
 * the next part of the file. It may be a neighbour's, or what could not be punched when it left because a child read
 * it. */
static int blocked(struct query *query, u64 old, u64 old_length, u64 length)
{
	struct query next;
	u64 first = query->offset + (old - query->start), behind = first + old_length;
	i64 data = call3(__NR_lseek, control->memory_fd, behind, 3);
	return control->split || (!failed(data) && (u64)data < first + length) ||
	       (behind - 1) / STRIDE != (first + length - 1) / STRIDE || old + old_length < query->end ||
	       (find(query->end, &next) > 0 && next.start == query->end && ours(&next) &&
		next.offset == query->offset + (query->end - query->start));
}

/* Whether a range is of the memory file alone, with one access: for the program one mapping. */
static int is_one(u64 start, u64 end, u64 access)
{
	struct query query;
	for (u64 at = start; at < end; at = query.end)
		if (find(at, &query) <= 0 || query.start > at || !ours(&query) || (query.vma_flags ^ access) & 7)
			return 0;
	return 1;
}

/* Grows a mapping that may not move: by a fresh part of the file behind it. */
static int grow_behind(u64 *a, u64 access, i64 *result)
{
	u64 end = a[0] + up(a[1]), more = up(a[2]) - up(a[1]);
	struct query last;
	*result = -ENOMEM;
	if (find(end - 1, &last) <= 0 || last.end != end ||
	    call(__NR_mmap, (i64)end, (i64)more, (i64)(access & 7), MAP_SHARED | MAP_FIXED_NOREPLACE, control->memory_fd,
		 (i64)fresh(more)) != (i64)end)
		return DONE;
	watch(end, more);
	*result = (i64)a[0];
	return DONE;
}

/* What a part of the old place reads, be it the file's or, while a child reads the file, its own: through any
 * protection. */
static void copy_part(struct query *query, u64 start, u64 end, u64 to)
{
	i64 data, hole;
	u64 from = query->offset + (start - query->start), length = end - start;
	call3(__NR_mprotect, start, length, (query->vma_flags & 7) | 1);
	for (u64 at = 0; at < length; at = (u64)hole - from) {
		data = load(&control->frozen) ? (i64)(from + at) : call3(__NR_lseek, control->memory_fd, from + at, 3);
		if (failed(data) || (u64)data >= from + length)
			break;
		hole = load(&control->frozen) ? (i64)(from + length) : call3(__NR_lseek, control->memory_fd, data, 4);
		if (failed(hole) || (u64)hole > from + length)
			hole = (i64)(from + length);
		volatile u64 *source = (volatile u64 *)(start + (u64)data - from), *into = (volatile u64 *)(to + (u64)data - from);
		for (u64 word = 0; word < (u64)(hole - data) / 8; word++)
			if (source[word])
				into[word] = source[word];
	}
}

/* Gives such a mapping another length by moving it, bytes and all, to a fresh part of the file: anywhere, or to `there`
 * (MREMAP_FIXED). */
static int move_whole(struct query *query, u64 *a, struct holes *holes, i64 *result)
{
	u64 old = a[0], old_length = up(a[1]), length = up(a[2]), flags = a[3], fixed = flags & 2, there = fixed ? a[4] : 0;
	u64 argument[2] = { old, old_length }, kept = length < old_length ? length : old_length;
	struct query part;
	i64 done;
	*result = -EINVAL;
	/* The old place is left only at the same length. */
	if ((flags & 4 && length != old_length) ||
	    (fixed && (!(flags & 1) || there & (PAGE - 1) || there + length < there ||
		       (there < old + old_length && old < there + length))))
		return DONE;
	*result = -ENOMEM;
	if (!is_one(old, old + old_length, query->vma_flags))
		return DONE;
	if (!(flags & 1))
		return grow_behind(a, query->vma_flags, result);
	if (fixed)
		replace(there, length, holes);
	i64 to = call(__NR_mmap, (i64)there, (i64)length, 3, MAP_SHARED | (fixed ? MAP_FIXED : 0), control->memory_fd,
		      (i64)fresh(length));
	if (failed(to))
		return DONE;
	punch_all(holes);
	for (u64 at = old; at < old + kept && find(at, &part) > 0; at = part.end)
		copy_part(&part, at, part.end < old + kept ? part.end : old + kept, (u64)to + (at - old));
	zap((u64)to, length);
	call3(__NR_mprotect, to, length, query->vma_flags & 7);
	watch((u64)to, length);
	do_munmap(argument, &done);
	/* Zeros where it was. */
	if (flags & 4) {
		call(__NR_mmap, (i64)old, (i64)old_length, (i64)(query->vma_flags & 7), MAP_SHARED | MAP_FIXED,
		     control->memory_fd, (i64)fresh(old_length));
		watch(old, old_length);
	}
	*result = to;
	return DONE;
}

static int in_segment(u64 offset, u64 length)
{
	for (u32 i = 0; i < control->segment_count; i++)
		if (control->segments[i].at < offset + length &&
		    offset < control->segments[i].at + control->segments[i].length)
			return 1;
	return 0;
}

static int do_mremap(u64 *a, i64 *result, int by_tracer)
{
	u64 old = a[0], old_length = up(a[1]), length = up(a[2]), flags = a[3];
	struct query query;
	struct holes holes = { 0 };
	if (old & (PAGE - 1) || !length)
		return GO_ON;
	if (find(old, &query) <= 0 || query.start > old)
		return GO_ON;
	u64 offset = query.offset + (old - query.start);
	int here = ours(&query), leaves = here && flags & 4;
	/* Two mappings of the same pages: only of shared memory. And a part of a program's image stays where it is. */
	if (here && (!old_length || (leaves && in_segment(offset, old_length)))) {
		*result = -EINVAL;
		return DONE;
	}
	/* It may be one that the tracer knows by its place. */
	if (load(&control->apart) && !here && query.inode) {
		if (by_tracer && flags & 2) {
			replace(a[4], length, &holes);
			punch_all(&holes);
		}
		return FORWARD;
	}
	/* As new memory of a file (do_mmap). */
	if (!here && query.inode && (query.vma_flags & (VMA_WRITABLE | VMA_SHARED)) == VMA_WRITABLE && !by_tracer)
		return FORWARD;
	if (data_of(&query) && (length > old_length || flags & 4) &&
	    beyond_data(flags & 4 ? length : length - old_length, flags & 2 ? a[4] : 0, flags & 2 ? a[4] + length : 0)) {
		*result = -ENOMEM;
		return DONE;
	}
	/* Parts that are mapped one by one here are one mapping for the kernel, which would have joined them. */
	int parts = here && query.end < old + old_length && is_one(old, old + old_length, query.vma_flags);
	if (parts && length <= old_length && !(flags & 6)) {
		u64 rest[2] = { old + length, old_length - length };
		*result = (i64)old;
		return length < old_length && do_munmap(rest, &(i64){ 0 }) == GO_ON ? GO_ON : DONE;
	}
	if (parts || (here && length > old_length && blocked(&query, old, old_length, length)))
		return move_whole(&query, a, &holes, result);
	note(old, old + old_length, 1);
	if (flags & 2)
		replace(a[4], length, &holes);
	*result = call(__NR_mremap, (i64)old, (i64)old_length, (i64)length, (i64)flags, (i64)a[4], 0);
	if (failed(*result))
		return DONE;
	punch_all(&holes);
	if (here) {
		if (length < old_length)
			punch(offset + length, old_length - length);
		if ((u64)*result != old)
			zap((u64)*result, length);
	}
	/* Zeros where it was, and no second mapping of its pages. */
	if (leaves) {
		call(__NR_mmap, (i64)old, (i64)old_length, (i64)(query.vma_flags & 7), MAP_SHARED | MAP_FIXED,
		     control->memory_fd, (i64)fresh(old_length));
		watch(old, old_length);
	}
	watch((u64)*result, length);
	return DONE;
}

static int do_brk(u64 *a, i64 *result)
{
	struct holes holes = { 0 };
	/* The tracer died before it said where the heap is. */
	if (!control->break_end)
		return GO_ON;
	/* Where it has died, another mapper may have let a call go on as it stands. */
	u64 wanted = up(a[0]), end = up((u64)call3(__NR_brk, 0, 0, 0));
	if (a[0] && wanted < end && wanted >= control->break_start) {
		note(wanted, end, 1);
		if (leave(wanted, end, &holes) != end)
			return FORWARD;
	}
	if (wanted > end && beyond_data(wanted - end, 0, 0)) {
		*result = call3(__NR_brk, 0, 0, 0);
		return DONE;
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

#define MADV_DONTNEED 4
#define MADV_FREE 8
#define MADV_REMOVE 9
#define MADV_DONTFORK 10
#define MADV_DOFORK 11
#define MADV_WIPEONFORK 18
#define MADV_KEEPONFORK 19
#define MADV_COLLAPSE 25
#define MADV_GUARD_INSTALL 102

#define HUGE_PAGE (2ul << 20)
/* What the kernel says of huge pages now: what is there can be made such a page, and there must be room for one. They
 * are not made: what is touched is seen page by page. */
static i64 collapsed(struct query *query, u64 from, u64 to)
{
	u64 first = (query->start + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	if (first + HUGE_PAGE > query->end)
		return -EINVAL;
	first = (from + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	if (first > (to & ~(HUGE_PAGE - 1)))
		return -EINVAL;
	for (u64 at = first; at + HUGE_PAGE <= to; at += HUGE_PAGE) {
		u64 offset = query->offset + (at - query->start);
		i64 data = call3(__NR_lseek, control->memory_fd, offset, 3);
		if (!load(&control->frozen) && (failed(data) || (u64)data >= offset + HUGE_PAGE))
			return -EINVAL;
	}
	return 0;
}

/* What the kernel would say of this advice for a private mapping that is one of the memory file's. */
static i64 advised(struct query *query, u64 from, u64 to, u64 advice)
{
	int image = in_segment(query->offset + (from - query->start), to - from);
	if (advice == MADV_COLLAPSE)
		return collapsed(query, from, to);
	if (advice == MADV_REMOVE)
		return image && !failed(call3(__NR_madvise, from, to - from, MADV_DONTNEED)) ? -EACCES : -EINVAL;
	if (image && (advice == MADV_FREE || advice == MADV_WIPEONFORK))
		return -EINVAL;
	/* It refuses what is locked, and keeps guards where they are. */
	if (advice == MADV_DONTNEED || advice == ADVISE_LOCKED || advice == MADV_FREE || advice == MADV_GUARD_INSTALL)
		return call3(__NR_madvise, from, to - from, advice == MADV_FREE ? MADV_DONTNEED : advice);
	return 0;
}

static int do_madvise(u64 *a, i64 *result)
{
	u64 at = a[0], end = a[0] + up(a[1]), advice = a[2], fork = 0;
	struct query query;
	if (at & (PAGE - 1) || end < at)
		return GO_ON;
	int of_fork = advice == MADV_DONTFORK || advice == MADV_DOFORK || advice == MADV_WIPEONFORK ||
		      advice == MADV_KEEPONFORK;
	if (!of_fork && advice != MADV_COLLAPSE)
		note(at, end, 1);
	*result = 0;
	i64 unmapped = 0;
	while (at < end) {
		int found = find(at, &query);
		if (found < 0)
			return FORWARD;
		if (!found || query.start >= end) {
			unmapped = -ENOMEM;
			break;
		}
		u64 from = query.start > at ? query.start : at;
		u64 to = query.end < end ? query.end : end;
		u64 offset = query.offset + (from - query.start);
		if (query.start > at)
			unmapped = -ENOMEM;
		at = to;
		*result = ours(&query) ? advised(&query, from, to, advice) : call3(__NR_madvise, from, to - from, advice);
		if (failed(*result))
			return DONE;
		if (!ours(&query) || advice == MADV_COLLAPSE)
			continue;
		/* The tracer remembers it, and fills a part of a program's image anew. */
		fork |= of_fork || in_segment(offset, to - from);
		if (of_fork || in_segment(offset, to - from))
			continue;
		/* DONTNEED means zeros from now on; FREE allows them; so does a guard when it goes. */
		if (load(&control->frozen))
			call(__NR_mmap, (i64)from, (i64)(to - from), (i64)(query.vma_flags & 7), MAP_SHARED | MAP_FIXED,
			     control->memory_fd, (i64)fresh(to - from)), watch(from, to - from);
		else
			punch(offset, to - from);
		if (advice == MADV_GUARD_INSTALL)
			call3(__NR_madvise, from, to - from, advice);
	}
	*result = unmapped;
	return fork && !unmapped ? FORWARD : DONE;
}

/* Write access to private memory of a file is given between two looks of the tracer. */
static int do_mprotect(u64 *a, i64 *result)
{
	u64 start = a[0], end = a[0] + up(a[1]), more = 0;
	struct query query;
	for (u64 at = start; at < end && find(at, &query) > 0 && query.start < end; at = query.end) {
		u64 from = query.start > start ? query.start : start;
		if (query.vma_flags & VMA_WRITABLE)
			continue;
		if (ours(&query))
			more += (query.end < end ? query.end : end) - from;
		else if (!(query.vma_flags & VMA_SHARED) && query.inode)
			return FORWARD;
	}
	*result = -ENOMEM;
	return more && beyond_data(more, 0, 0) ? DONE : GO_ON;
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
