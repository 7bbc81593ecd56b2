export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
git init -q -b main r
cd r
for i in $(seq 40); do
    seq $i $((i * 150)) > f$((i % 7))
    seq 1 $i > g$i
    git add .
    export GIT_AUTHOR_DATE="@$((1700000000 + i)) +0000" GIT_COMMITTER_DATE="@$((1700000000 + i)) +0000"
    git commit -q -m "commit $i"
done
git gc --quiet --aggressive
git fsck --full --strict 2>&1
git rev-list --objects --all | sha256sum
git log -p | sha256sum
git count-objects -v | grep -E 'count|in-pack|garbage'
