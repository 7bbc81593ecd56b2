# Runs inside of the guest: two memory nodes, the second without processors. Each check prints one line,
# PASS or FAIL, with its name; main.rs reads them. What takes time is waited for, long after a slow machine
# would have done it; the seconds since boot are printed to show where time goes, and nothing depends on them.

pass() { echo "PASS $1 ($(cut -d' ' -f1 /proc/uptime) s)"; }
fail() { echo "FAIL $1: $2"; }
# check NAME VALUE OP EXPECTED: by test(1).
check() { if [ "$2" "$3" "$4" ]; then pass "$1"; else fail "$1" "$2 $3 $4 does not hold"; fi; }
balancing=/proc/sys/kernel/numa_balancing
kdamonds=/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds
stat=/sys/module/damon_stat/parameters/enabled

# on PROGRAM KIND NODE: pages of 4 KiB of that area on that node, by what `tiered` says twice a second.
on() { awk -v kind="$2" -v field=$(($3 + 2)) '$1 == kind { print $field }' "/tmp/$1"; }
pid() { sed -n 's/^ready //p' "/tmp/$1"; }
# program NAME AREA...: starts `tiered` and waits until it is ready.
program() {
    name=$1
    shift
    tiered "/tmp/$name" "$@" > "/tmp/$name.log" 2>&1 &
    until_ test -e "/tmp/$name" || fail "start-$name" "$(cat "/tmp/$name.log")"
}
# until_ COMMAND...: waits until it succeeds, five minutes at most.
uptime_() { cut -d. -f1 /proc/uptime; }
until_() { end=$(($(uptime_) + 300)); until "$@"; do [ "$(uptime_)" -lt $end ] || return 1; sleep 0.1; done; }
at_least() { [ "$(on "$1" "$2" "$3")" -ge "$4" ]; }
reads() { [ "$(cat "$1")" = "$2" ]; }
# The kernel's own balancing between nodes is on, as Debian has it, but does not get to scan anything.
echo 1000000 > /sys/kernel/debug/sched/numa_balancing/scan_delay_ms
settle() { echo 1 > $balancing; [ -e $stat ] && echo Y > $stat; true; }
# as_found NAME [BALANCING]: settings are as `settle` left them, or the kernel's balancing is that.
as_found() {
    check "$1-numa-balancing" "$(cat $balancing)" = "${2:-1}"
    check "$1-kdamonds" "$(cat $kdamonds)" = 0
    [ -e $stat ] && check "$1-damon-stat" "$(cat $stat)" = Y
}

settle
pagemill tier doctor > /tmp/doctor
check doctor $? = 0
grep -q 'ok        damon' /tmp/doctor || fail doctor-damon "$(cat /tmp/doctor)"
as_found doctor

# Promotion and demotion with no room anywhere, so that pages are exchanged; locked and shared ones stay.
program a hot:16:1 cold:24:0
program b locked:8:1 shared:8:1
pagemill tier -p "$(pid a),$(pid b)" --apply --policy hemem --latency none --quantum 500ms --cpu 100 --rate 64M \
    --reserve 4G > /tmp/tier-a 2>&1 &
daemon=$!
until_ at_least a hot 0 3600
until_ at_least a cold 1 3000
check promotion "$(on a hot 0)" -ge 3600
check demotion "$(on a cold 1)" -ge 3000
check locked-stay "$(on b locked 1)" = 2048
check shared-stay "$(on b shared 1)" = 2048
check balancing-off-while-placing "$(cat $balancing)" = 0
# says NAME PATTERN ARGUMENT...: the status comes to say it; a daemon writes it after it has acted.
status_has() { pagemill tier status $2 > /tmp/status 2>&1; grep -qs "$1" /tmp/status; }
says() { until_ status_has "$2" "$3" && pass "$1" || fail "$1" "$(cat /tmp/status)"; }
says status "^$(pid a) tiered"
says shared-is-said 'shared [1-9]'
says prometheus '^pagemill_tier_promoted_bytes_total{.*comm="tiered"} [1-9]' --prometheus

# Killed: the next start puts everything back.
kill -9 $daemon; wait $daemon 2> /dev/null
check killed-left-it-changed "$(cat $balancing)" = 0
pagemill tier doctor | grep -q left-over && pass doctor-sees-left-over || fail doctor-sees-left-over
pagemill tier restore 2> /tmp/restore
as_found kill-9
kill "$(pid b)"

# Scripted latencies: the default tier is overloaded for five seconds, then it is not.
echo '0 300 140' > /tmp/script
kill "$(pid a)"
program c hot:24:0 cold:24:1
pagemill tier -p "$(pid c)" --apply --policy hemem+watermark --latency replay:/tmp/script --quantum 500ms \
    --cpu 100 --rate 64M --record /rec > /tmp/tier-c 2>&1 &
daemon=$!
until_ at_least c hot 1 5500
check overloaded-hot-pages-leave "$(on c hot 1)" -ge 5500
echo '0 70 140' > /tmp/script
until_ at_least c hot 0 3600
check relieved-hot-pages-return "$(on c hot 0)" -ge 3600
kill -TERM $daemon; wait $daemon
check sigterm $? = 0
as_found sigterm
grep -q moved /tmp/tier-c && pass talk || fail talk "$(cat /tmp/tier-c)"
pagemill tier replay /rec > /tmp/replay
check replay $? = 0
cat /tmp/replay
pagemill tier replay /rec --policy hemem > /dev/null
check replay-of-another-policy-differs $? = 1

# A dry run touches nothing.
before=$(on c hot 0)
echo '0 300 140' > /tmp/script
pagemill tier -p "$(pid c)" --policy hemem+watermark --latency replay:/tmp/script --quantum 300ms > /tmp/dry 2>&1 &
daemon=$!
until_ grep -qs 'would move' /tmp/dry
kill -TERM $daemon; wait $daemon
check dry-run $? = 0
grep -q 'would move' /tmp/dry && pass dry-run-says || fail dry-run-says "$(cat /tmp/dry)"
check dry-run-moves-nothing "$(on c hot 0)" = "$before"
as_found dry-run
kill "$(pid c)"

# Idle bits as the tracker; then DAMON's own threads move the pages: of a process where the kernel can
# (6.17), else physical memory of a cgroup.
program g hot:16:1 cold:16:0
pagemill tier -p "$(pid g)" --apply --policy hemem --latency none --track idle --quantum 500ms --cpu 100 \
    > /tmp/tier-g 2>&1 &
daemon=$!
if [ -e /sys/kernel/mm/page_idle/bitmap ]; then
    until_ at_least g hot 0 3600
    check idle-bits-promotion "$(on g hot 0)" -ge 3600
    says idle-bits-status 'tracked by idle'
    kill -TERM $daemon; wait $daemon
    check idle-bits $? = 0
else
    wait $daemon
    check idle-bits-missing $? = 3
fi
as_found idle-bits
kill "$(pid g)"

group=/sys/fs/cgroup/placed
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir $group
# Memory is charged to the group in which it is touched.
sh -c "echo 0 > $group/cgroup.procs; exec tiered /tmp/h hot:16:1" > /tmp/h.log 2>&1 &
until_ test -e /tmp/h
program i hot:16:1
release=$(uname -r | cut -d. -f1-2)
pagemill tier -p "$(pid i)" --apply --policy hemem --latency none --act damos --quantum 500ms --cpu 100 \
    > /tmp/tier-i 2>&1 &
daemon=$!
case $release in
6.*)
    wait $daemon
    check damos-of-a-process-is-refused $? = 3
    grep -q 'name a cgroup' /tmp/tier-i && pass damos-refusal-is-said || fail damos-refusal-is-said "$(cat /tmp/tier-i)"
    ;;
*)
    until_ at_least i hot 0 2000
    check damos-of-a-process "$(on i hot 0)" -ge 2000
    says damos-counted '^pagemill_tier_promoted_bytes_total{.*comm="tiered"} [1-9]' --prometheus
    kill -TERM $daemon; wait $daemon
    check damos-of-a-process-ends $? = 0
    ;;
esac
as_found damos-of-a-process
# Physical memory is all of a node: without quotas, which kernel 6.12 does not apply so soon after its boot, DAMON
# goes through it for minutes here.
case $release in
6.*) ;;
*)
    before=$(on i hot 0)
    pagemill tier --cgroup placed --apply --policy hemem --latency none --act damos --quantum 500ms --cpu 100 \
        > /tmp/tier-h 2>&1 &
    daemon=$!
    until_ at_least h hot 0 2000
    check damos-of-a-group "$(on h hot 0)" -ge 2000
    check damos-of-a-group-leaves-others "$(on i hot 0)" = "$before"
    kill -TERM $daemon; wait $daemon
    check damos-of-a-group-ends $? = 0
    as_found damos-of-a-group
    ;;
esac
kill "$(pid h)" "$(pid i)"

# The kernel's own promotion, held while the default tier is overloaded.
for knob in scan_delay_ms scan_period_min_ms scan_period_max_ms; do
    echo 100 > /sys/kernel/debug/sched/numa_balancing/$knob
done
program d hot:16:1
echo '0 70 140' > /tmp/script
pagemill tier -p "$(pid d)" --apply --policy tpp+colloid --latency replay:/tmp/script --quantum 300ms \
    > /tmp/tier-d 2>&1 &
daemon=$!
until_ reads $balancing 2
check kernel-promotes "$(cat $balancing)" = 2
until_ at_least d hot 0 100
check kernel-promoted "$(on d hot 0)" -ge 100
echo '0 300 140' > /tmp/script
until_ reads $balancing 0
check kernel-holds "$(cat $balancing)" = 0
kill -INT $daemon; wait $daemon
as_found kernel
kill "$(pid d)"

# Weights of interleaving follow the aim and are put back.
weights=/sys/kernel/mm/mempolicy/weighted_interleave
if [ -e $weights/node0 ]; then
    before=$(cat $weights/*)
    # All reads are on the default tier, which is overloaded: the search aims at about half of them.
    follow() {
        [ "$(cat $weights/node0)" -ge 8 ] && [ "$(cat $weights/node0)" -le 20 ] &&
            [ "$(cat $weights/node1)" -ge 12 ]
    }
    program e hot:8:0
    echo '0 300 140' > /tmp/script
    pagemill tier -p "$(pid e)" --apply --policy hemem+watermark --act interleave --latency replay:/tmp/script \
        --quantum 400ms > /tmp/tier-e 2>&1 &
    daemon=$!
    until_ follow && pass interleave-weights || fail interleave-weights "$(cat $weights/*)"
    kill -TERM $daemon; wait $daemon
    check interleave-restored "$(cat $weights/*)" = "$before"
    kill "$(pid e)"
fi

# Somebody else's DAMON is left alone.
[ -e $stat ] && echo N > $stat
echo 1 > $kdamonds
program f hot:4:1
pagemill tier -p "$(pid f)" --apply --policy hemem --latency none --for 1s > /tmp/busy 2>&1
check damon-busy $? = 3
check damon-busy-left-alone "$(cat $kdamonds)" = 1
grep -q 'somebody has set up' /tmp/busy && pass damon-busy-said || fail damon-busy-said "$(cat /tmp/busy)"
check damon-busy-balancing "$(cat $balancing)" = 1
echo 0 > $kdamonds
kill "$(pid f)"

. /programs.sh

stty -F /dev/ttyS1 raw 2> /dev/null
tar -C / -cf - rec placed | base64 > /dev/ttyS1

if grep -q pagemill.measure /proc/cmdline; then
    # 64 GiB tracked: one page of 4 KiB in each 2 MiB, so that page tables are as long as they would be.
    settle
    echo 1 > /proc/sys/vm/overcommit_memory
    echo never > /sys/kernel/mm/transparent_hugepage/enabled
    program big sparse:65536:0 hot:16:1
    pagemill tier -p "$(pid big)" --apply --policy hemem+colloid --latency probe --for 60s --record /big \
        > /tmp/tier-big 2>&1 &
    daemon=$!
    sleep 57
    pagemill tier status | sed 's/^/MEASURE /'
    wait $daemon
    pagemill tier replay /big | sed 's/^/MEASURE /'
fi
echo "SCRIPT-END"
