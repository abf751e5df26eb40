//! The inventory of PCI devices.

/// A PCI device of the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Class, subclass and interface (24 bits); `None` if not known.
    pub class: Option<u32>,
}

/// Any vendor or device, in a quirk.
const ANY: u16 = 0xffff;

/// Any class, in a quirk.
const ANY_CLASS: u32 = 0xffff_ffff;

impl Device {
    /// Reads an inventory: a line for each device, `vendor:device [class]` in hexadecimal digits,
    /// `#` begins a comment.
    ///
    /// # Errors
    /// The number of the line that is not understood.
    pub fn read_all(text: &str) -> Result<Vec<Self>, usize> {
        let mut devices = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                devices.push(Self::read(line).ok_or(number + 1)?);
            }
        }
        Ok(devices)
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (vendor, device) = words.next()?.split_once(':')?;
        let class = match words.next() {
            Some(class) => Some(u32::from_str_radix(class.trim_start_matches("0x"), 16).ok()?),
            None => None,
        };
        let number = |text: &str| u16::from_str_radix(text, 16).ok();
        words.next().is_none().then_some(Self { vendor: number(vendor)?, device: number(device)?, class })
    }

    /// Whether a quirk for this vendor, device and shifted class is for it.
    pub(crate) fn is_meant(&self, vendor: u16, device: u16, class: u32, shift: u32) -> bool {
        let same_class = class == ANY_CLASS || self.class.is_none_or(|own| own.checked_shr(shift) == Some(class));
        same_class && (vendor == ANY || vendor == self.vendor) && (device == ANY || device == self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inventory_is_lines_of_numbers() {
        let text = "1af4:1000 020000 # virtio-net\n\n# nothing\n8086:29c0\n";
        let devices = Device::read_all(text);
        let net = Device { vendor: 0x1af4, device: 0x1000, class: Some(0x2_0000) };
        assert_eq!(devices, Ok(vec![net, Device { vendor: 0x8086, device: 0x29c0, class: None }]));
        for (wrong, line) in [("8086", 1), ("8086:29c0\nx:y", 2), ("8086:29c0 1 2", 1), ("123456:1", 1)] {
            assert_eq!(Device::read_all(wrong), Err(line), "{wrong}");
        }
    }

    #[test]
    fn a_quirk_is_for_a_device_as_the_kernel_compares() {
        let net = Device { vendor: 0x1af4, device: 0x1000, class: Some(0x2_0000) };
        assert!(net.is_meant(0x1af4, ANY, ANY_CLASS, 0));
        assert!(net.is_meant(ANY, ANY, 2, 16), "by class");
        assert!(!net.is_meant(ANY, ANY, 3, 16));
        assert!(!net.is_meant(0x8086, ANY, ANY_CLASS, 0));
        assert!(net.is_meant(ANY, ANY, ANY_CLASS, 40), "a shift that is too far is not used");
    }
}
