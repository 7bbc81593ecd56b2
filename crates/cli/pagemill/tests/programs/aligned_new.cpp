// Every form of operator new and delete, with alignment from 8 to 4096, by containers and by hand; the
// output is a digest of what was stored.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

template <size_t A> struct alignas(A) Aligned {
    uint64_t value = 1;
};
static uint64_t digest = 7;
static void take(uint64_t x) { digest = (digest ^ x) * 0x100000001b3ull; }
template <class T> static void at_right_address(T *p, size_t align) {
    if (reinterpret_cast<uintptr_t>(p) % align) {
        std::printf("misaligned: %zu\n", align);
        std::exit(1);
    }
}
template <size_t A> static void one() {
    std::vector<std::unique_ptr<Aligned<A>>> singles;
    std::vector<std::unique_ptr<Aligned<A>[]>> arrays;
    for (int i = 0; i < 300; i++) {
        singles.push_back(std::make_unique<Aligned<A>>());
        at_right_address(singles.back().get(), A);
        singles.back()->value = (uint64_t)i * A;
        arrays.push_back(std::make_unique<Aligned<A>[]>(1 + i % 5));
        at_right_address(arrays.back().get(), A);
        if (i % 3 == 0) singles.erase(singles.begin() + i / 4 % (int)singles.size());
    }
    for (auto &p : singles) take(p->value);
    auto *quiet = new (std::nothrow) Aligned<A>[7];
    at_right_address(quiet, A);
    delete[] quiet;
    void *raw = ::operator new(100, std::align_val_t(A), std::nothrow);
    at_right_address(raw, A);
    ::operator delete(raw, std::align_val_t(A), std::nothrow);
    raw = ::operator new[](100, std::align_val_t(A));
    ::operator delete[](raw, 100, std::align_val_t(A));
    raw = ::operator new(100);
    ::operator delete(raw, 100);
    raw = ::operator new[](100, std::nothrow);
    ::operator delete[](raw, std::nothrow);
    std::vector<Aligned<A>> grown;
    for (int i = 0; i < 1000; i++) {
        grown.emplace_back();
        grown.back().value = (uint64_t)i;
    }
    at_right_address(grown.data(), A);
    for (auto &g : grown) take(g.value);
}
static void too_much() {
    volatile size_t n = std::numeric_limits<size_t>::max() / 4;
    try {
        delete[] new char[n];
        std::puts("no bad_alloc");
    } catch (const std::bad_alloc &) {
        take(1);
    }
    if (new (std::nothrow) char[n]) std::puts("nothrow did not return null");
    static int calls;
    std::set_new_handler([] {
        if (++calls == 3) std::set_new_handler(nullptr);
    });
    try {
        ::operator delete(::operator new(n, std::align_val_t(64)), std::align_val_t(64));
        std::puts("no bad_alloc from aligned new");
    } catch (const std::bad_alloc &) {
        take((uint64_t)calls);
    }
    std::printf("handler called %d times\n", calls);
}
int main() {
    one<8>(), one<16>(), one<32>(), one<64>(), one<128>(), one<512>(), one<4096>();
    too_much();
    std::map<std::string, std::list<int>> tree;
    std::unordered_map<int, std::deque<std::string>> table;
    for (int i = 0; i < 20000; i++) {
        tree["key " + std::to_string(i * 7919 % 5000)].push_back(i);
        table[i * 31 % 3000].push_back(std::string((size_t)(i % 300), 'a'));
        if (i % 4 == 0) tree.erase("key " + std::to_string(i % 5000));
        if (i % 5 == 0) table.erase(i % 3000);
    }
    for (auto &[key, list] : tree) take(key.size() * 1000 + list.size());
    uint64_t sum = 0;
    for (auto &[key, strings] : table)
        for (auto &s : strings) sum += (uint64_t)key + s.size();
    take(sum);
    std::vector<std::thread> threads;
    std::vector<uint64_t> sums(4);
    for (size_t t = 0; t < 4; t++)
        threads.emplace_back([t, &sums] {
            std::vector<std::shared_ptr<Aligned<64>>> kept;
            for (uint64_t i = 0; i < 20000; i++) {
                auto p = std::make_shared<Aligned<64>>();
                p->value = i * (t + 1);
                if (i % 7 == 0) kept.push_back(p);
            }
            for (auto &p : kept) sums[t] += p->value;
        });
    for (auto &t : threads) t.join();
    for (auto s : sums) take(s);
    std::printf("digest %016llx\n", (unsigned long long)digest);
}
