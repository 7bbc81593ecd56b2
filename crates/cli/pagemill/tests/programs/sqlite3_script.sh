awk 'BEGIN {
    print "CREATE TABLE a(id INTEGER PRIMARY KEY, k TEXT, v TEXT);\nBEGIN;"
    text = "abcdefghijklmnopqrstuvwxyz0123456789"
    text = text text text text
    for (i = 1; i <= 550000; i++)
        printf "INSERT INTO a VALUES(%d,\"key%d\",\"%s\");\n", i, i * 7919 % 100003, substr(text, 1 + i % 9)
    print "COMMIT;\nCREATE INDEX ak ON a(k);"
    print "SELECT count(*), sum(length(v)), min(k), max(k) FROM a;"
    print "SELECT count(*) FROM a x JOIN a y ON x.k = y.k WHERE x.id < 5000;\nPRAGMA integrity_check;"
}' > script.sql
sqlite3 t.db < script.sql
sha256sum < t.db
(exit 5)
