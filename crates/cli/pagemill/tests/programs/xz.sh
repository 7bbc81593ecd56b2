awk 'BEGIN { srand(1); for (i = 0; i < 150000; i++) print i, int(rand() * 1e6), i * 7919 % 1000 }' > d
xz -T2 -3 --block-size=1MiB -k d
sha256sum < d.xz
xz -t d.xz
echo $?
xz -dc -T2 d.xz | cmp - d
echo $?
