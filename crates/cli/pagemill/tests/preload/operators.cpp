// The C++ operators: plain, aligned, nothrow, the new handler and bad_alloc.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

static volatile std::size_t huge = std::numeric_limits<std::ptrdiff_t>::max();
static int calls;

struct alignas(256) Wide { char bytes[512]; };
struct Cleanup {
    const char *name;
    ~Cleanup() { std::printf("unwound through %s\n", name); }
};

static void giving_up() {
    if (++calls == 3) std::set_new_handler(nullptr);
}
static void throwing() { throw std::bad_alloc(); }

__attribute__((noinline)) static void *deep(int n) {
    Cleanup c{"deep"};
    return n ? deep(n - 1) : ::operator new(huge);
}

int main() {
    auto wide = std::make_unique<Wide[]>(7);
    std::printf("aligned new[]: %d\n", reinterpret_cast<std::uintptr_t>(wide.get()) % 256 == 0);
    std::unique_ptr<Wide> one(new Wide);
    std::printf("aligned new: %d\n", reinterpret_cast<std::uintptr_t>(one.get()) % 256 == 0);
    void *p = ::operator new(48, std::align_val_t(4096), std::nothrow);
    std::printf("aligned nothrow new: %d\n", reinterpret_cast<std::uintptr_t>(p) % 4096 == 0);
    ::operator delete(p, std::align_val_t(4096), std::nothrow);
    p = ::operator new[](0);
    std::printf("new[0]: %d\n", p != nullptr);
    ::operator delete[](p, std::size_t(0));

    try { deep(2); } catch (const std::bad_alloc &e) { std::printf("bad_alloc: %s\n", e.what()); }
    try { (void)::operator new[](huge); } catch (const std::bad_alloc &) { std::printf("bad_alloc from new[]\n"); }
    try { (void)::operator new(huge, std::align_val_t(64)); } catch (const std::bad_alloc &) {
        std::printf("bad_alloc from aligned new\n");
    }
    try { (void)::operator new[](huge, std::align_val_t(64)); } catch (const std::bad_alloc &) {
        std::printf("bad_alloc from aligned new[]\n");
    }
    std::printf("nothrow: %d\n", ::operator new(huge, std::nothrow) == nullptr);
    std::printf("nothrow[]: %d\n", ::operator new[](huge, std::nothrow) == nullptr);

    std::set_new_handler(giving_up);
    try { (void)::operator new(huge); } catch (const std::bad_alloc &) {
        std::printf("handler called %d times\n", calls);
    }
    calls = 0;
    std::set_new_handler(giving_up);
    std::printf("nothrow with handler: %d\n", ::operator new(huge, std::nothrow) == nullptr);
    std::printf("handler called %d times\n", calls);
    std::set_new_handler(throwing);
    try { deep(1); } catch (const std::bad_alloc &) { std::printf("handler threw\n"); }
    std::printf("nothrow with throwing handler: %d\n", ::operator new(huge, std::nothrow) == nullptr);
    std::printf("aligned nothrow with throwing handler: %d\n",
                ::operator new[](huge, std::align_val_t(64), std::nothrow) == nullptr);
    std::set_new_handler(nullptr);

    std::thread worker([] {
        thread_local std::vector<std::string> local;
        for (int i = 0; i < 1000; i++) local.push_back(std::string(i % 90 + 1, 'x'));
        try { deep(1); } catch (const std::bad_alloc &) { std::printf("bad_alloc in a thread\n"); }
    });
    worker.join();
}
