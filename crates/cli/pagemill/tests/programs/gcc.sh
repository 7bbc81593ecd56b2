awk 'BEGIN {
    print "#include <stdio.h>\n#include <string.h>"
    for (i = 0; i < 120; i++) {
        printf "struct s%d { int a[%d]; const char *n; };\n", i, i + 1
        printf "static int f%d(struct s%d *s, int x) { int r = x; for (int i = 0; i < %d; i++) {", i, i, i + 3
        printf " r = r * 31 + s->a[i %% %d]; if (r %% 7 == %d) r ^= (int)strlen(s->n);", i + 1, i % 7
        printf " else switch (r & 3) { case 0: r += %d; break; case 1: r -= i; } } return r; }\n", i
    }
    print "int main(void) { int t = 0;"
    for (i = 0; i < 120; i++) printf "{ struct s%d s = {{%d}, \"n%d\"}; t += f%d(&s, t); }\n", i, i, i, i
    print "printf(\"%d\\n\", t); return 0; }"
}' > m.c
gcc -O2 -c m.c -o m.o && sha256sum < m.o
gcc m.o -o m && ./m
