sqlite3 t.db <<'SQL'
CREATE TABLE a(id INTEGER PRIMARY KEY, k TEXT, v BLOB, n INT);
CREATE INDEX ak ON a(k);
WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 40000)
    INSERT INTO a SELECT i, 'key' || (i * 7919 % 10007), zeroblob(i % 200), i % 37 FROM c;
DELETE FROM a WHERE n % 3 = 0;
UPDATE a SET k = k || 'x' WHERE n % 5 = 1;
SELECT count(*), sum(length(v)), min(k), max(k) FROM a;
SELECT n, count(DISTINCT k), group_concat(substr(k, 4, 2))
    FROM (SELECT * FROM a ORDER BY k, id LIMIT 3000) GROUP BY n ORDER BY n;
SELECT count(*) FROM a x JOIN a y ON x.k = y.k;
VACUUM;
PRAGMA integrity_check;
SQL
sqlite3 t.db .dump | sha256sum
sha256sum < t.db
