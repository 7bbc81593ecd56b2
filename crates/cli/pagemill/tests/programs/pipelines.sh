seq 120000 | awk '{ print ($1 * 7919) % 10007, $1 }' | sort -k1n -k2n | uniq -w4 -c | tee >(wc -l >&2) |
    tr ' ' '_' | sha256sum
declare -A table
for i in $(seq 20000); do table[$((i * 31 % 997))]+="$i "; done
for key in "${!table[@]}"; do echo "$key ${table[$key]}"; done | sort | sha256sum
nested() {
    local i
    for i in $(seq 40); do (echo sub $i) | cat; done
}
nested | sha256sum
long=$(seq 50000)
echo ${#long}
(exit 7)
echo $?
