redis-server --port 0 --unixsocket "$PWD/s" --save '' --enable-debug-command yes --dir "$PWD" --logfile log \
    --daemonize no >/dev/null &
server=$!
cli() { redis-cli -s "$PWD/s" "$@"; }
for i in $(seq 200); do
    cli ping 2>/dev/null | grep -q PONG && break
    sleep 0.05
done
# Its keys are random, so only that it succeeds counts; the digest is of the data loaded below.
redis-benchmark -s "$PWD/s" -n 20000 -r 5000 -c 20 -P 8 -q -t set,get,lpush,lpop,sadd,hset,zadd,mset >/dev/null
echo benchmark $?
cli flushall
awk 'BEGIN {
    for (i = 0; i < 30000; i++) {
        k = i * 7919 % 9973
        v = substr("abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz", 1, 1 + i % 58)
        print "SET k" k " " v i
        print "RPUSH l" k % 50 " " v i
        print "HSET h" k % 300 " f" i % 90 " " v i
        print "ZADD z" k % 40 " " i " m" k
        print "SADD s" k % 70 " " i
        if (i % 3 == 0) print "DEL k" (i * 31 % 9973)
        if (i % 5 == 0) print "APPEND k" k " " v v v
    }
}' | cli --pipe | tail -1
cli dbsize
cli debug digest
cli bgsave
while cli info persistence | grep -q rdb_bgsave_in_progress:1; do sleep 0.05; done
cli info persistence | tr -d '\r' | grep rdb_last_bgsave_status
cli debug reload
cli debug digest
cli debug populate 50000 p 100
seq 0 2 20000 | sed 's/^/DEL p:/' | cli --pipe | tail -1
cli debug digest
cli shutdown nosave
wait $server
echo server $?
