# Sourced before the python scripts: an interpreter that has its own tests, and how to run one.
for python in python3 /usr/bin/python3; do
    $python -c 'import test.test_json, test.test_pickle, test.test_fork1' 2>/dev/null && break
done
check() {
    # The child's exit status counts, not sed's.
    set -o pipefail
    $python -m unittest -b "$@" 2>&1 | sed -E -n -e 's/ in [0-9.]+s$//' -e '/^(Ran|OK|FAILED|FAIL:|ERROR:)/p'
    echo $?
}
