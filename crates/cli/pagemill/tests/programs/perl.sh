perl - <<'PERL'
use Digest::SHA qw(sha1_hex);
$| = 1;
my (%h, @a);
for my $i (1 .. 150000) {
    $h{"key" . ($i * 7919 % 50021)} .= "v$i,";
    push @a, [$i, "x" x ($i % 90)];
    delete $h{"key" . ($i % 50021)} if $i % 3 == 0;
    splice(@a, $i % 100, 30) if @a > 20000;
}
my $text = join "|", map { "$_=$h{$_}" } sort keys %h;
$text =~ s/(\d+)/<$1>/g;
print sha1_hex($text), " ", scalar(@a), " ", length(join "", map { $_->[1] } @a), "\n";
my $pid = fork;
if (!$pid) { print sha1_hex($text . "child"), "\n"; exit 3 }
waitpid $pid, 0;
print $? >> 8, "\n";
PERL
