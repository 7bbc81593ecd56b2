for python in python3 /usr/bin/python3; do
    $python -c 'import numpy' 2>/dev/null && break
done
export OPENBLAS_NUM_THREADS=2
$python - <<'PY'
import hashlib, threading
import numpy
found = [None] * 4
def work(me):
    random = numpy.random.default_rng(me)
    a = random.integers(0, 1000, (300, 300))
    b = numpy.sort((a @ a.T).ravel())[::-1].copy()
    floats = random.random(400000)
    floats.sort()
    found[me] = hashlib.sha256(b.tobytes() + floats.tobytes()).hexdigest()
threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(*found, sep="\n")
PY
