use super::*;

#[test]
fn what_is_closed_or_of_another_kind_is_not_open() {
    let (numbers, words) = (Handles::<u32>::new(1, "number"), Handles::<&str>::new(2, "word"));
    let number: *mut u8 = numbers.insert(Arc::new(7)).unwrap();
    let word: *mut u8 = words.insert(Arc::new("w")).unwrap();
    assert_eq!(*numbers.get(number).unwrap(), 7);
    assert_eq!(numbers.get(word).unwrap_err().errno, libc::EBADF);
    assert_eq!(numbers.get(std::ptr::null_mut::<u8>()).unwrap_err().errno, libc::EINVAL);
    assert_eq!(*numbers.remove(number).unwrap(), 7);
    assert_eq!(numbers.remove(number).unwrap_err().errno, libc::EBADF, "closed twice");
    let next: *mut u8 = numbers.insert(Arc::new(8)).unwrap();
    assert_ne!(next, number, "a number is not used again soon");
    assert_eq!(numbers.get(number).unwrap_err().errno, libc::EBADF);
}

#[test]
fn numbers_go_round_past_those_in_use() {
    let numbers = Handles::<u32>::new(3, "number");
    let first: *mut u8 = numbers.insert(Arc::new(1)).unwrap();
    numbers.open.write().unwrap().as_mut().unwrap().last = usize::MAX >> KIND_BITS;
    let second: *mut u8 = numbers.insert(Arc::new(2)).unwrap();
    assert_eq!((*numbers.get(first).unwrap(), *numbers.get(second).unwrap()), (1, 2));
    assert_eq!(numbers.remove_all(|value| *value == 2).len(), 1);
    assert!(numbers.get(second).is_err() && numbers.get(first).is_ok());
}

#[test]
fn a_leak_of_handles_is_refused_at_last() {
    let numbers = Handles::<()>::new(1, "number");
    let value = Arc::new(());
    for _ in 0..HANDLES_MAX {
        numbers.insert::<u8>(Arc::clone(&value)).unwrap();
    }
    assert_eq!(numbers.insert::<u8>(value).unwrap_err().errno, libc::EMFILE);
}
