//! Policies.

use crate::PolicyError;
use crate::analysis::Policy;

#[test]
fn a_policy_says_for_what_it_vouches() {
    let text = "also = ['prctl']\n[[site]]\nbuild-id = 'ab12'\naddress = 0x1234\ncalls = ['setuid']\n";
    let policy = Policy::parse(text).unwrap();
    assert_eq!(policy.also, ["prctl"]);
    assert_eq!((policy.site[0].address, policy.site[0].object.as_deref()), (Some(0x1234), None));
    assert!(matches!(Policy::parse("also = ['dance']"), Err(PolicyError::NoSuchCall { name }) if name == "dance"));
    assert!(matches!(Policy::parse("[[site]]\ncalls = []"), Err(PolicyError::NoObject)));
    for wrong in ["alos = []", "[[site]]\nobject = 3\ncalls = []", "[[site]\n", "[[site]]\nobject = 'x'"] {
        assert!(matches!(Policy::parse(wrong), Err(PolicyError::Toml(_))), "{wrong}");
    }
}
