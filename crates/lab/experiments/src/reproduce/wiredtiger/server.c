/* A server around WiredTiger, MongoDB's storage engine, which is a library: keys and values over a Unix socket in
 * Redis' protocol, so that any client of Redis can load it.
 *
 *     wiredtiger-server SOCKET DIRECTORY [CACHE_MB]
 *
 * One table, kept in DIRECTORY, which must be empty. A connection has a thread and a session of its own.
 *
 *     GET key | SET key value | MGET key... | PING
 *     ZRANGEBYLEX index [key + LIMIT 0 count     keys from this one on: the table is in order, whatever index it is
 *     ZADD, DEL                                  accepted, and nothing done: there is no index to keep
 *
 * SIGTERM and SIGINT end it with 0 and close the table. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <wiredtiger.h>

enum { MOST_PARTS = 256, LONGEST = 1 << 20 };

static WT_CONNECTION *engine;

static void die(const char *what, const char *why) {
    fprintf(stderr, "wiredtiger-server: %s: %s\n", what, why);
    exit(1);
}

/* A connection: what was read and not yet taken, what is to be sent, and the parts of one request. */
struct peer {
    int fd;
    char in[1 << 16];
    size_t taken, filled;
    FILE *out;
    char *text[MOST_PARTS];
    size_t length[MOST_PARTS];
    int parts;
};

/* The next byte; -1 at the end. Sends the answers before it waits, so that requests may come in batches. */
static int byte(struct peer *peer) {
    if (peer->taken == peer->filled) {
        if (fflush(peer->out) != 0) return -1;
        ssize_t got;
        do {
            got = read(peer->fd, peer->in, sizeof peer->in);
        } while (got < 0 && errno == EINTR);
        if (got <= 0) return -1;
        peer->taken = 0;
        peer->filled = (size_t)got;
    }
    return (unsigned char)peer->in[peer->taken++];
}

/* The number after MARK, up to the end of the line; -1 for anything else. */
static long number(struct peer *peer, int mark, long most) {
    long value = 0;
    int next, digits = 0;
    if (byte(peer) != mark) return -1;
    while ((next = byte(peer)) >= '0' && next <= '9') {
        value = value * 10 + (next - '0');
        if (++digits > 9) return -1;
    }
    return next == '\r' && byte(peer) == '\n' && digits > 0 && value <= most ? value : -1;
}

/* Reads a request; 0 when there is none, or it is not in the protocol. */
static int request(struct peer *peer) {
    long parts = number(peer, '*', MOST_PARTS);
    if (parts < 1) return 0;
    for (peer->parts = 0; peer->parts < parts; peer->parts++) {
        long length = number(peer, '$', LONGEST);
        if (length < 0) return 0;
        char *text = realloc(peer->text[peer->parts], (size_t)length + 1);
        if (text == NULL) return 0;
        peer->text[peer->parts] = text;
        peer->length[peer->parts] = (size_t)length;
        for (long at = 0; at < length; at++) {
            int next = byte(peer);
            if (next < 0) return 0;
            text[at] = (char)next;
        }
        text[length] = 0;
        if (byte(peer) != '\r' || byte(peer) != '\n') return 0;
    }
    return 1;
}

static void bulk(FILE *out, const void *bytes, size_t length) {
    fprintf(out, "$%zu\r\n", length);
    fwrite(bytes, 1, length, out);
    fputs("\r\n", out);
}

static void error(FILE *out, int why) { fprintf(out, "-ERR %s\r\n", wiredtiger_strerror(why)); }

static void get(struct peer *peer, WT_CURSOR *cursor, const char *key) {
    WT_ITEM value;
    cursor->set_key(cursor, key);
    int why = cursor->search(cursor);
    if (why == 0 && (why = cursor->get_value(cursor, &value)) == 0)
        bulk(peer->out, value.data, value.size);
    else if (why == WT_NOTFOUND)
        fputs("$-1\r\n", peer->out);
    else
        error(peer->out, why);
    cursor->reset(cursor);
}

static void set(struct peer *peer, WT_CURSOR *cursor) {
    WT_ITEM value = {.data = peer->text[2], .size = peer->length[2]};
    int why;
    do {
        cursor->set_key(cursor, peer->text[1]);
        cursor->set_value(cursor, &value);
        why = cursor->insert(cursor);
    } while (why == WT_ROLLBACK);
    if (why == 0)
        fputs("+OK\r\n", peer->out);
    else
        error(peer->out, why);
    cursor->reset(cursor);
}

/* Keys from one on, at most so many of them. */
static void range(struct peer *peer, WT_CURSOR *cursor, const char *from, long most) {
    char *keys[1024];
    long found = 0;
    int exact, why;
    const char *key;
    if (most > 1024) most = 1024;
    cursor->set_key(cursor, from);
    why = cursor->search_near(cursor, &exact);
    if (why == 0 && exact < 0) why = cursor->next(cursor);
    while (why == 0 && found < most && cursor->get_key(cursor, &key) == 0) {
        if ((keys[found] = strdup(key)) == NULL) break;
        found++;
        why = cursor->next(cursor);
    }
    cursor->reset(cursor);
    fprintf(peer->out, "*%ld\r\n", found);
    for (long at = 0; at < found; at++) {
        bulk(peer->out, keys[at], strlen(keys[at]));
        free(keys[at]);
    }
}

static void answer(struct peer *peer, WT_CURSOR *cursor) {
    const char *name = peer->text[0];
    if (!strcasecmp(name, "get") && peer->parts == 2)
        get(peer, cursor, peer->text[1]);
    else if (!strcasecmp(name, "set") && peer->parts == 3)
        set(peer, cursor);
    else if (!strcasecmp(name, "mget")) {
        fprintf(peer->out, "*%d\r\n", peer->parts - 1);
        for (int part = 1; part < peer->parts; part++) get(peer, cursor, peer->text[part]);
    } else if (!strcasecmp(name, "zrangebylex") && peer->parts == 7 && peer->text[2][0] == '[')
        range(peer, cursor, peer->text[2] + 1, atol(peer->text[6]));
    else if (!strcasecmp(name, "zadd") || !strcasecmp(name, "del"))
        fputs(":0\r\n", peer->out);
    else if (!strcasecmp(name, "ping"))
        fputs("+PONG\r\n", peer->out);
    else
        fprintf(peer->out, "-ERR unknown command\r\n");
}

static void *serve(void *argument) {
    struct peer *peer = argument;
    WT_SESSION *session;
    WT_CURSOR *cursor;
    int why = engine->open_session(engine, NULL, NULL, &session);
    if (why != 0) die("cannot open a session", wiredtiger_strerror(why));
    why = session->open_cursor(session, "table:records", NULL, NULL, &cursor);
    if (why != 0) die("cannot open the table", wiredtiger_strerror(why));
    while (request(peer)) answer(peer, cursor);
    session->close(session, NULL);
    fclose(peer->out);
    for (int part = 0; part < MOST_PARTS; part++) free(peer->text[part]);
    free(peer);
    return NULL;
}

/* Takes connections until the process ends. */
static void *listening(void *argument) {
    int listener = *(int *)argument;
    for (;;) {
        pthread_t thread;
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) continue;
        struct peer *peer = calloc(1, sizeof *peer);
        if (peer == NULL || (peer->out = fdopen(fd, "w")) == NULL) die("no memory", "for a connection");
        peer->fd = fd;
        if (pthread_create(&thread, NULL, serve, peer) != 0) die("cannot start", "a thread");
        pthread_detach(thread);
    }
    return NULL;
}

int main(int count, char **words) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char config[128];
    WT_SESSION *session;
    sigset_t ends;
    pthread_t thread;
    int listener, why, signal_number;
    if (count < 3 || strlen(words[1]) >= sizeof address.sun_path) {
        fprintf(stderr, "usage: wiredtiger-server SOCKET DIRECTORY [CACHE_MB]\n");
        return 2;
    }
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    snprintf(config, sizeof config, "create,session_max=1024,cache_size=%luMB",
             count > 3 ? strtoul(words[3], NULL, 10) : 1024);
    if ((why = wiredtiger_open(words[2], NULL, config, &engine)) != 0) die(words[2], wiredtiger_strerror(why));
    if ((why = engine->open_session(engine, NULL, NULL, &session)) != 0) die("session", wiredtiger_strerror(why));
    why = session->create(session, "table:records", "key_format=S,value_format=u");
    if (why != 0) die("cannot make the table", wiredtiger_strerror(why));
    strcpy(address.sun_path, words[1]);
    if ((listener = socket(AF_UNIX, SOCK_STREAM, 0)) < 0 || bind(listener, (void *)&address, sizeof address) != 0 ||
        listen(listener, 64) != 0)
        die(words[1], strerror(errno));
    if (pthread_create(&thread, NULL, listening, &listener) != 0) die("cannot start", "a thread");
    sigwait(&ends, &signal_number);
    unlink(words[1]);
    /* Sessions of connections that are open end with the process: the engine would wait for them to be closed. */
    if ((why = session->checkpoint(session, NULL)) != 0) die("checkpoint", wiredtiger_strerror(why));
    exit(0);
}
