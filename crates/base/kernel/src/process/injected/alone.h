/* Without a tracer the program goes on by itself.
 *
 *  let_go         its memory becomes private, over the file that nobody writes any more; who waits there is told
 *  own_pages      what it has written becomes its own pages, and the file empty: then every call may go on as it
 *                 stands, whoever answers it. Not where a child reads the file
 *
 * Injector and mapper see within a second that there is no tracer; the first to have the lock does it. If it is killed
 * midway, the other begins again; if both are, the keeper does it (keeper.rs). Until it is done no fork goes on.
 *
 * A part of injected.c, which includes it after calls.h.
 */

static char *append(char *at, const char *text)
{
	while (*text)
		*at++ = *text++;
	*at = 0;
	return at;
}

/* "text" and a number. */
static char *put(char *at, const char *text, u64 number)
{
	char digits[20];
	u32 count = 0;
	at = append(at, text);
	do
		digits[count++] = (char)('0' + number % 10);
	while (number /= 10);
	while (count)
		*at++ = digits[--count];
	*at = 0;
	return at;
}

static int has_ended(void)
{
	return call3(__NR_getppid, 0, 0, 0) != control->process;
}

/* Whether the program still has the memory that we share: it has not executed another one. */
static int same_memory(void)
{
	char path[64], name[16];
	/* 1: KCMP_VM. A kernel that cannot tell says an error. */
	if (call(__NR_kcmp, control->process, call3(__NR_getpid, 0, 0, 0), 1, 0, 0, 0) <= 0)
		return 1;
	/* The first thread may have ended before the others: it has no memory then. */
	append(put(path, "/proc/", (u64)control->process), "/exe");
	return call(__NR_readlink, (i64)path, (i64)name, sizeof name, 0, 0, 0) == -2;
}

/* Takes the lock, whose holder may be of lower priority. Not if a thread had it that is gone with the program. */
static int take_at_last(void)
{
	for (u32 tries = 1; !take(); tries++) {
		i64 moment[2] = { 0, 50000 };
		if (tries < 100)
			call3(__NR_sched_yield, 0, 0, 0);
		else
			call3(__NR_nanosleep, moment, 0, 0);
		if (tries % 1024)
			continue;
		take_from_the_dead();
		if (load(&control->lock) == A_THREAD && (has_ended() || !same_memory()))
			return 0;
	}
	return 1;
}

static u64 hexadecimal(const char **at)
{
	u64 value = 0;
	while (**at == ' ' || **at == 'x' || (**at == '0' && (*at)[1] == 'x'))
		(*at)++;
	for (;; (*at)++) {
		char digit = **at;
		if (digit >= '0' && digit <= '9')
			value = value * 16 + (u64)(digit - '0');
		else if (digit >= 'a' && digit <= 'f')
			value = value * 16 + (u64)(digit - 'a' + 10);
		else
			return value;
	}
}

#define FUTEX "202 "
#define FUTEX_PRIVATE 128

/* A thread that waits for a word of a shared mapping, the end of another above all (pthread_join), waits for that word
 * of the file, and nobody would wake it there any more: it is woken, looks, and waits where the word is now. */
static void wake_thread(char *path)
{
	char text[256];
	struct query query;
	i64 fd = call(__NR_openat, -100, (i64)path, 0, 0, 0, 0);
	if (failed(fd))
		return;
	i64 length = call3(__NR_read, fd, text, sizeof text - 1);
	call3(__NR_close, fd, 0, 0);
	if (failed(length))
		return;
	text[length] = 0;
	const char *at = text;
	for (const char *futex = FUTEX; *futex; futex++)
		if (*at++ != *futex)
			return;
	u64 word = hexadecimal(&at), operation = hexadecimal(&at);
	if (operation & FUTEX_PRIVATE || find(word, &query) <= 0 || query.start > word || !ours(&query))
		return;
	u64 offset = (query.offset + (word - query.start)) & ~(PAGE - 1);
	i64 page = call(__NR_mmap, 0, PAGE, 3, MAP_SHARED, control->memory_fd, (i64)offset);
	if (failed(page))
		return;
	call(__NR_futex, page + (i64)(word & (PAGE - 1)), 1, 0x7fffffff, 0, 0, 0);
	call3(__NR_munmap, page, PAGE, 0);
}

static void wake_all(void)
{
	char path[64], entries[1024], *end = append(put(path, "/proc/", (u64)control->process), "/task");
	i64 fd = call(__NR_openat, -100, (i64)path, 0200000, 0, 0, 0), length;
	if (failed(fd))
		return;
	while ((length = call3(__NR_getdents64, fd, entries, sizeof entries)) > 0 && !failed(length))
		for (i64 at = 0; at < length; at += *(uint16_t *)(entries + at + 16)) {
			u64 thread = 0;
			for (const char *name = entries + at + 19; *name >= '0' && *name <= '9'; name++)
				thread = thread * 10 + (u64)(*name - '0');
			if (!thread)
				continue;
			append(put(end, "/", thread), "/syscall");
			wake_thread(path);
		}
	call3(__NR_close, fd, 0, 0);
}

#define MADV_POPULATE_WRITE 23
/* Bytes that are in memory twice for a moment. */
#define AT_ONCE (16ul << 20)

/* What the program has written becomes pages of its own; whether the file holds nothing of it any more. Nobody may fork
 * meanwhile, for the child would read the file. */
static int own_pages(void)
{
	struct query query;
	int all = 1;
	for (u64 at = 0; find(at, &query) > 0; at = query.end) {
		if (!ours(&query))
			continue;
		for (u64 from = query.start, to; from < query.end; from = to) {
			i64 data = call3(__NR_lseek, control->memory_fd, query.offset + (from - query.start), 3);
			if (failed(data) || (u64)data - query.offset >= query.end - query.start)
				break;
			i64 hole = call3(__NR_lseek, control->memory_fd, data, 4);
			from = query.start + ((u64)data - query.offset);
			to = failed(hole) ? query.end : query.start + ((u64)hole - query.offset);
			to = to > query.end ? query.end : to;
			to = to - from > AT_ONCE ? from + AT_ONCE : to;
			if (query.vma_flags & VMA_WRITABLE && !(query.vma_flags & VMA_SHARED) &&
			    !failed(call3(__NR_madvise, from, to - from, MADV_POPULATE_WRITE)))
				call(__NR_fallocate, control->memory_fd, 3, data, (i64)(to - from), 0, 0);
			else
				all = 0;
		}
	}
	return all;
}

static void part(void)
{
	struct query query;
	u32 state = KEPT;
	for (u64 at = 0; find(at, &query) > 0; at = query.end)
		/* It is promised no memory that the kernel could refuse. */
		if (ours(&query) && query.vma_flags & VMA_SHARED)
			call(__NR_mmap, (i64)query.start, (i64)(query.end - query.start), (i64)(query.vma_flags & 7),
			     MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, control->memory_fd, (i64)query.offset);
	wake_all();
	if (!load(&control->frozen) && own_pages())
		state = GIVEN_BACK;
	/* One may have been about to wait. */
	wake_all();
	store(&control->orphan, state);
	/* Others see by it that all may go on as it stands. */
	if (state == GIVEN_BACK)
		call3(__NR_close, control->memory_fd, 0, 0);
}

/* With the lock, so whoever was at it before must have been killed: each step may be done twice. */
static void part_with_lock(void)
{
	u32 orphan = load(&control->orphan);
	if (orphan && orphan != PARTING)
		return;
	store(&control->orphan, PARTING);
	part();
}

/* Done once, by whoever comes first; others wait until it is. `locked`: the lock is the caller's. */
static void let_go(int locked)
{
	u32 orphan = load(&control->orphan);
	if ((orphan && orphan != PARTING) || (!locked && !take_at_last()))
		return;
	part_with_lock();
	if (!locked)
		leave_off();
}

static int drops(u64 *a)
{
	return a[2] == MADV_DONTNEED || a[2] == ADVISE_LOCKED;
}

/* DONTNEED means zeros, not what the file holds. */
static int orphan_madvise(u64 *a, i64 *result)
{
	u64 at = a[0], end = a[0] + up(a[1]);
	struct query query;
	if (at & (PAGE - 1) || end < at || !drops(a))
		return GO_ON;
	*result = 0;
	while (at < end && find(at, &query) > 0 && query.start < end) {
		u64 from = query.start > at ? query.start : at;
		u64 to = query.end < end ? query.end : end;
		if (ours(&query))
			call(__NR_mmap, (i64)from, (i64)(to - from), (i64)(query.vma_flags & 7),
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
		else
			call3(__NR_madvise, from, to - from, a[2]);
		at = to;
	}
	return DONE;
}

static int decide(struct notification *notification, i64 *result, int by_tracer);

static void answer_elsewhere(struct notification *copy);

static int is_own(struct notification *notification)
{
	return notification->pid == (u32)control->process ||
	       !failed(call3(__NR_tgkill, control->process, notification->pid, 0));
}

/* A call that no tracer answers: of another process, or of ours, which is let go by now. */
static void answer_alone(struct notification *copy)
{
	i64 result = 0;
	int what = GO_ON;
	if (!is_own(copy)) {
		answer_elsewhere(copy);
		return;
	}
	if (take_at_last()) {
		part_with_lock();
		what = decide(copy, &result, 0);
		leave_off();
	}
	respond(copy->id, result, what != DONE);
}

/* With the lock. */
static int decide(struct notification *notification, i64 *result, int by_tracer)
{
	u64 *a = notification->argument;
	if (load(&control->orphan) == PARTING)
		part_with_lock();
	u32 orphan = load(&control->orphan);
	if (!orphan)
		punch_put_off();
	if (orphan && notification->number == __NR_close_range)
		return same_memory() ? do_close_range(a, result) : GO_ON;
	if (orphan)
		return orphan == KEPT && notification->number == __NR_madvise && same_memory() ?
			       orphan_madvise(a, result) : GO_ON;
	switch (notification->number) {
	case __NR_mmap: return do_mmap(a, result, by_tracer);
	case __NR_munmap: return do_munmap(a, result);
	case __NR_mremap: return do_mremap(a, result, by_tracer);
	case __NR_brk: return do_brk(a, result);
	case __NR_madvise: return do_madvise(a, result);
	case __NR_close_range: return do_close_range(a, result);
	case __NR_mprotect: return do_mprotect(a, result);
	default: return FORWARD;
	}
}
