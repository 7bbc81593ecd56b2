# Colloid's programs (GUPS, a graph kernel, and with pagemill.programs on the kernel's command line the other graph
# kernels, Silo and CacheLib) run inside of the guest while the daemon places their memory. guest.sh has the checks.
#
# Each is placed twice: away from a default tier that is overloaded, by hemem+colloid, and back, by hemem; GUPS away
# once more, by hemem+watermark, and back by the kernel. Recording and pages go to the host, which holds one against the
# other.
mkdir /placed
settle
# The kernel's own balancing is off, else it would move what the daemon has moved; by_kernel lets it scan at once.
for knob in scan_delay_ms scan_period_min_ms scan_period_max_ms; do
    echo 100 > /sys/kernel/debug/sched/numa_balancing/$knob
done

# node PID NODE: 4 KiB pages of anonymous memory on that node.
node() {
    sed -n "/anon=/s/.* N$2=\([0-9]*\).*/\1/p" "/proc/$1/numa_maps" 2> /dev/null |
        awk '{ sum += $1 } END { print sum + 0 }'
}
runs() { grep -qs '^State:.[RSD]' "/proc/$1/status"; }
# sent WAY: the daemon says that it has sent 8 MiB away, or 2 MiB back, for not all are hot; also once the program has
# ended.
sent() {
    runs "$program" || return 0
    [ "$1" = away ] && at=10 least=7.5 || at=4 least=1.5
    awk -v at=$at -v least=$least '
        $3 == "moved" && $(at + 1) == "MiB" { sum += $at }
        END { exit sum < least }' "/tmp/tier-$name"
}

# placed NAME POLICY WAY OPTION...: places the program until pages have gone that way; fails if it ends before that.
placed() {
    name=$1 policy=$2 way=$3
    shift 3
    pagemill tier -p "$program" --apply --policy "$policy" --quantum 300ms --cpu 100 --rate 64M \
        --record "/placed/$name.$policy" "$@" > "/tmp/tier-$name" 2>&1 &
    daemon=$!
    until_ sent "$way" || fail "$name-$policy" "$(cat "/tmp/tier-$name")"
    kill -STOP "$program" 2> /dev/null
    kill -TERM $daemon 2> /dev/null; wait $daemon
    ended=$?
    tiered where "$program" > "/placed/$name.$policy.pages" 2> /dev/null
    runs=$(grep -c '^State:.T' "/proc/$program/status" 2> /dev/null)
    kill -CONT "$program" 2> /dev/null
    [ "$runs" = 1 ] || return 1
    check "$name-$policy" $ended = 0
}

# balances MODE: the kernel's balancing is that; also once the program has ended.
balances() { ! runs "$program" || reads $balancing "$1"; }
# promoted BEFORE: pages have left node 1, where so many were; the same.
promoted() { ! runs "$program" || [ "$(node "$program" 1)" -le $(($1 - 100)) ]; }
# The kernel promotes what it finds hot, and does not while the default tier is overloaded.
by_kernel() {
    echo '0 70 140' > /tmp/script
    before=$(node "$program" 1)
    for policy in tpp tpp+colloid; do
        pagemill tier -p "$program" --apply --policy $policy --latency replay:/tmp/script --quantum 300ms \
            --record "/placed/$1.$policy" > "/tmp/tier-$1" 2>&1 &
        daemon=$!
        until_ balances 2
        if [ $policy = tpp ]; then
            until_ promoted "$before"
        else
            echo '0 300 140' > /tmp/script
            until_ balances 0
        fi
        kill -TERM $daemon 2> /dev/null; wait $daemon
        ended=$?
        runs "$program" || return 1
        check "$1-$policy" $ended = 0
    done
}

# program_placed LENGTH-OPTION LENGTH PROGRAM OPTION...: a program that ends before it was placed runs again, longer.
program_placed() {
    option=$1 length=$2
    shift 2
    for times in 1 3 9 27; do
        rm -rf "/placed/$1".*
        echo '0 300 140' > /tmp/script
        echo 0 > $balancing
        pagemill workload "$@" "$option" "$(awk "BEGIN { print $length * $times }")" > "/tmp/$1.said" 2>&1 &
        program=$!
        until_ started && placed "$1" hemem+colloid away --latency replay:/tmp/script &&
            placed "$1" hemem back --latency none && if [ "$1" = gups ]; then
                placed "$1" hemem+watermark away --latency replay:/tmp/script && by_kernel "$1"
            fi
        whole=$?
        wait $program
        check "$1-verified" $? = 0
        [ $whole = 0 ] && break
    done
    check "$1-placed" $whole = 0
    grep -q '"check"' "/tmp/$1.said" || fail "$1-says" "$(cat "/tmp/$1.said")"
    as_found "$1" 0
}
# It has memory.
started() { ! runs $program || [ "$(node $program 0)" -ge 4096 ]; }

# This machine as a machine file of the simulator, before the others run.
pagemill tier probe --for 20ms > /placed/machine.toml 2> /tmp/probe
check probe $? = 0
grep -q '^# alternate tier: node 1' /placed/machine.toml || fail probe-finds-both "$(cat /tmp/probe)"

program_placed --seconds 25 gups --scale 0.03
program_placed --scale 0.6 gap-pr --class W --degree 32
if grep -q pagemill.programs /proc/cmdline; then
    program_placed --seconds 25 gups-antagonist --scale 0.03
    for kernel in bfs sssp cc bc tc; do
        program_placed --scale 0.4 gap-$kernel --class W --degree 32
    done
    program_placed --scale 0.1 silo-ycsb
    program_placed --scale 0.3 silo-tpcc
    program_placed --scale 0.1 cache
fi
check nothing-runs "$(pidof pagemill)" = ""
check no-loan-is-left "$(ls -A /run/pagemill | grep -v 'lock$')" = ""
