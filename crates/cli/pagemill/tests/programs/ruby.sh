ruby - <<'RUBY'
require "digest"
a = []
300_000.times do |i|
  a << ("s%d" % (i * 7919 % 100_003)) * (i % 12)
  a.shift(500) if a.size > 60_000 && i % 700 == 0
end
h = a.group_by(&:size).transform_values { |v| v.sort.uniq.join(",") }
GC.start
GC.compact if GC.respond_to?(:compact)
t = 4.times.map { |k| Thread.new { (1..20_000).map { |i| "t#{k}-#{i}" }.join.size } }.map(&:value)
puts Digest::SHA256.hexdigest(h.sort.inspect), t.inspect, `echo child`
$stdout.flush
puts Process.wait2(fork { exit!(5) })[1].exitstatus
RUBY
