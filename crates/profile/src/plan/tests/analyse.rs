//! From scripts to plans.

use super::*;

/// A program that loads at its start, computes for two seconds, loads, computes, and loads again.
const THREE_BURSTS: &str = "
    0 start 1 bin/app
    0 code 1 bin/app 64
    0 read 1 bin/app 0..40 1
    10 find 1 etc/conf
    11 miss 1 etc/other
    12 list 1 share
    100 code 1 lib/libc.so.6 8192
    2000 code 1 bin/app 4096
    2100 code 1 bin/app 8192
    2200 read 1 share/a 10..60 1
    2500 code 1 bin/app 12288
    4500 read 1 share/b 0..64 1
    4500 read 1 share/a 50..70 1
    5000 end 1
";

#[test]
fn three_bursts_and_the_first_address_after_each() {
    check(
        &[THREE_BURSTS],
        "
        group 0 at 0.000000 launch lead 0.000000 opens 4 extents 1 bytes 163840
          open bin/app
          open etc/conf
          open etc/other
          open share
          read bin/app 0+40
        group 1 at 2.200000 breakpoint lib/libc.so.6+0x2000 byte 00 process bin/app hit 0.100000 lead 2.100000 opens 1 extents 1 bytes 204800
          open share/a
          read share/a 10+50
        group 2 at 4.500000 breakpoint bin/app+0x3000 byte 00 process bin/app hit 2.500000 lead 2.000000 opens 1 extents 2 bytes 303104
          open share/b
          read share/b 0+64
          read share/a 60+10
        ",
    );
}
