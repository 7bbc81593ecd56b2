// Threads that come and go: what they leave behind is freed by others, and what runs while they
// end allocates.
//
//   threads short COUNT SEED         COUNT short threads, a few at a time
//   threads destructors COUNT SEED   the same, with thread-specific destructors that allocate
//   threads exchange SECONDS SEED    frees always come from another thread than the allocation
#include <atomic>
#include <memory>
#include <string>
#include <vector>
extern "C" {
#include "stress.h"
}

static const int AT_ONCE = 16;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static std::vector<object> left_behind;
static pthread_key_t keys[4];
static std::atomic<unsigned long> destroyed;

// Sets itself again until the library's limit of rounds, allocating each time.
static void destructor(void *value) {
    object *o = static_cast<object *>(value);
    object_check(o, "in a destructor");
    uint64_t seed = o->seed;
    object_free(o);
    delete o;
    destroyed++;
    uint64_t random = seed;
    if (below(&random, 4)) {
        o = new object;
        object_new(o, 1 + below(&random, 900), next(&random));
        pthread_setspecific(keys[seed % 4], o);
    }
}

struct Greedy {
    std::vector<std::string> kept;
    ~Greedy() {
        for (auto &s : kept) CHECK(s.find('y') + 1 == s.size(), "a thread_local string changed");
        std::vector<std::string> more(50, std::string(100, 'z'));
        kept.insert(kept.end(), more.begin(), more.end());
        destroyed++;
    }
};
static thread_local Greedy greedy;

struct task {
    uint64_t seed;
    bool destructors;
};
static void *live(void *argument) {
    std::unique_ptr<task> t(static_cast<task *>(argument));
    uint64_t random = t->seed;
    std::vector<object> mine(60);
    for (auto &o : mine) object_new(&o, 1 + below(&random, below(&random, 20) ? 500 : 60000), next(&random));
    // Half is freed here, half left; and some of what others left is freed here.
    std::vector<object> taken;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < mine.size() / 2; i++) left_behind.push_back(mine[i]);
    for (int i = 0; i < 30 && left_behind.size() > 2000; i++) {
        size_t at = below(&random, left_behind.size());
        taken.push_back(left_behind[at]);
        left_behind[at] = left_behind.back();
        left_behind.pop_back();
    }
    pthread_mutex_unlock(&lock);
    for (size_t i = mine.size() / 2; i < mine.size(); i++) object_free(&mine[i]);
    for (auto &o : taken) object_free(&o);
    if (t->destructors) {
        for (int i = 0; i < 4; i++) {
            object *o = new object;
            object_new(o, 1 + below(&random, 900), next(&random));
            pthread_setspecific(keys[i], o);
        }
        for (int i = 0; i < 20; i++) greedy.kept.push_back(std::string(10 + below(&random, 200), 'x') + "y");
    }
    return nullptr;
}

static size_t resident_kib() {
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    if (!f) return 0;
    char line[256];
    size_t kib = 0;
    while (fgets(line, sizeof line, f)) sscanf(line, "Pss: %zu", &kib);
    fclose(f);
    return kib;
}

static void come_and_go(int count, uint64_t seed, bool destructors) {
    size_t early = 0;
    std::vector<pthread_t> running;
    for (int i = 0; i < count; i++) {
        if (running.size() == AT_ONCE) {
            for (auto thread : running) pthread_join(thread, nullptr);
            running.clear();
        }
        if (i == count / 4) early = resident_kib();
        pthread_t thread;
        auto *own = new task{mix(seed + (uint64_t)i), destructors};
        CHECK(!pthread_create(&thread, nullptr, live, own), "pthread_create");
        running.push_back(thread);
    }
    for (auto thread : running) pthread_join(thread, nullptr);
    size_t late = resident_kib();
    fprintf(stderr, "stress: pss_early_kib=%zu pss_late_kib=%zu destroyed=%lu left=%zu\n", early, late,
            destroyed.load(), left_behind.size());
    // The live set is the same at both moments: caches of ended threads must not pile up.
    CHECK(late < early + early / 2 + 16384, "memory grew with the number of threads: %zu -> %zu KiB", early, late);
    if (destructors) CHECK(destroyed >= (unsigned long)count * 5, "only %lu destructors ran", destroyed.load());
    for (auto &o : left_behind) object_free(&o);
}

// A ring of mailboxes: each thread fills the next one's and frees its own.
static std::atomic<object *> boxes[4][256];
static std::atomic<bool> stop;
static std::atomic<unsigned long> passed;
static void *exchange(void *argument) {
    uintptr_t me = reinterpret_cast<uintptr_t>(argument);
    uint64_t random = mix(me);
    unsigned long n = 0;
    while (!stop) {
        for (auto &box : boxes[me % 4]) {
            object *o = new object;
            object_new(o, 1 + below(&random, 1500), next(&random));
            object *old = boxes[(me + 1) % 4][below(&random, 256)].exchange(o);
            if (!old) old = box.exchange(nullptr);
            if (old) {
                object_free(old);
                delete old;
                n++;
            }
        }
    }
    passed += n;
    return nullptr;
}

int main(int count, char **arguments) {
    CHECK(count > 3, "usage: threads short|destructors|exchange COUNT SEED");
    std::string what = arguments[1];
    uint64_t seed = strtoull(arguments[3], nullptr, 0);
    for (auto &key : keys) CHECK(!pthread_key_create(&key, destructor), "pthread_key_create");
    struct compaction compaction;
    compaction_start(&compaction);
    pool pool;
    pool_build(&pool, 3000, 8, seed);
    if (what == "exchange") {
        pthread_t threads[4];
        for (uintptr_t i = 0; i < 4; i++) {
            void *own = reinterpret_cast<void *>(seed * 4 + i);
            CHECK(!pthread_create(&threads[i], nullptr, exchange, own), "pthread_create");
        }
        for (double end = now() + atof(arguments[2]); goes_on(end);) nap(0.01);
        stop = true;
        for (auto thread : threads) pthread_join(thread, nullptr);
        for (auto &ring : boxes)
            for (auto &box : ring)
                if (object *o = box.exchange(nullptr)) {
                    object_free(o);
                    delete o;
                }
        CHECK(passed > 1000, "only %lu objects passed", passed.load());
    } else {
        come_and_go(atoi(arguments[2]), seed, what == "destructors");
    }
    pool_check(&pool, "at the end");
    pool_drop(&pool);
    compaction_stop(&compaction);
    puts("ok");
}
