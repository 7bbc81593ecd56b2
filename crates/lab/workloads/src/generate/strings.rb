# Strings of one size: make a set of a fixed volume, keep every fourth, drop the rest and the last
# round's quarter, double the size. A program that moved its strings would need the volume and a
# quarter; the rest is holes of the last size that do not fit the next one.
#
#   ruby strings.rb MEGABYTES ROUNDS SLEEP
megabytes, rounds, pause = Integer(ARGV[0]), Integer(ARGV[1]), Float(ARGV[2])
volume = megabytes << 20
# The interpreter adds a byte: these fill the size classes of all allocators to the last one.
length = 255
kept = []
rounds.times do
  made = Array.new(volume / length) { |number| (number % 251).chr * length }
  # A regular pattern: without randomised allocation the kept ones lie at the same places of every page.
  kept = (0...made.size).step(4).map { |number| made[number] }
  made = nil
  GC.start
  sleep pause
  length = 2 * length + 1
end
broken = kept.count { |string| string.count(string[0]) != string.bytesize }
abort "strings.rb: #{broken} strings changed their contents" if broken > 0
puts "kept #{kept.size} strings, #{kept.sum(&:bytesize)} bytes"
