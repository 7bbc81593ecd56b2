export PYTHONMALLOC=malloc
$python - <<'PYTHON'
import hashlib, os, sys

kept = [str(i) * (i % 50) for i in range(200000)]
del kept[::3]
del kept[::2]

def digest():
    return hashlib.sha256("".join(kept).encode()).hexdigest()

first = digest()
for i in range(8):
    pid = os.fork()
    if pid == 0:
        good = digest() == first
        more = [text + "!" for text in kept[::7]]
        os._exit(i if good else 99)
    kept[i * 100:i * 100 + 50] = [text[::-1][::-1] for text in kept[i * 100:i * 100 + 50]]
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(digest())
PYTHON
