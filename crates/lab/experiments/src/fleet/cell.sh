#!/bin/sh
# cell.sh NUMBER: one cell of these results, unless it is finished: memory brought into its state, the cell, memory's
# settings put back. May be run on any machine that has pagemill at the same place, any number of times.
here=@RESULTS@
pagemill=@PAGEMILL@
trap 'sh "$here/epilog.sh"' EXIT
sh "$here/prolog.sh"
"$pagemill" reproduce --cell "$1" -o "$here"
