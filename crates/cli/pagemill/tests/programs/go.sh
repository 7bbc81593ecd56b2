export GOCACHE="$PWD/cache" GOFLAGS=-mod=mod GOTOOLCHAIN=local
if [ ! -x "$BINARY" ]; then
    cat > small.go <<'GO'
package main

import (
	"crypto/sha256"
	"fmt"
	"sort"
	"sync"
)

func main() {
	var wait sync.WaitGroup
	sums := make([][32]byte, 8)
	for me := range sums {
		wait.Add(1)
		go func(me int) {
			defer wait.Done()
			table := map[int]string{}
			for i := 0; i < 60000; i++ {
				table[i*7919%10007] += fmt.Sprint(i % 10)
			}
			keys := make([]int, 0, len(table))
			for key := range table {
				keys = append(keys, key)
			}
			sort.Ints(keys)
			hash := sha256.New()
			for _, key := range keys {
				fmt.Fprint(hash, me, key, table[key])
			}
			copy(sums[me][:], hash.Sum(nil))
		}(me)
	}
	wait.Wait()
	for _, sum := range sums {
		fmt.Printf("%x\n", sum)
	}
}
GO
    go build -o "$BINARY" small.go
fi
"$BINARY"
