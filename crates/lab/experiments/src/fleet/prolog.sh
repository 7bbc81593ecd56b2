#!/bin/sh
# Brings this machine's memory into the state in which each cell begins: huge pages as on the machine that made the
# matrix, the page cache dropped, free memory compacted. As root only; else memory stays as found, which is said;
# and where PAGEMILL_NODE_AS_FOUND is set.
# What was set before is put back by epilog.sh. cell.sh runs both; on a cluster whose users are not root, an
# administrator names them in slurm.conf: Prolog=THIS Epilog=.../epilog.sh (they refer to nothing of the results).
root=
huge_pages='@ENABLED@'
defrag='@DEFRAG@'

settings=$root/sys/kernel/mm/transparent_hugepage
before=$root/run/pagemill-node
[ -z "${PAGEMILL_NODE_AS_FOUND-}" ] || exit 0
if [ ! -w "$settings/enabled" ]; then
    [ -e "$before" ] || echo "pagemill: memory is as found: resetting it is root's (or the cluster's: see $0)" >&2
    exit 0
fi
# Kept once: of a cell that was killed, what it found, not what it set. A machine that starts anew has no /run.
if [ ! -e "$before" ]; then
    for name in enabled defrag; do
        echo "$name $(sed 's/.*\[\(.*\)\].*/\1/' "$settings/$name")"
    done >"$before.$$" && mv -n "$before.$$" "$before"
    rm -f "$before.$$"
fi
[ -z "$huge_pages" ] || echo "$huge_pages" >"$settings/enabled"
[ -z "$defrag" ] || echo "$defrag" >"$settings/defrag"
sync
echo 3 >"$root/proc/sys/vm/drop_caches"
echo 1 >"$root/proc/sys/vm/compact_memory"
# A machine is not taken away from the cluster for this.
exit 0
