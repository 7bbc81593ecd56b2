//! Enums whose members have names.

/// Declares an enum whose members have names: words of recordings and profiles, of reports and of the command line.
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])*
        $vis:vis enum $name:ident { $($(#[$of:meta])* $member:ident = $text:literal,)* }
    ) => {
        $(#[$about])*
        $vis enum $name { $($(#[$of])* $member,)* }

        impl $name {
            /// All of them, in their order.
            $vis const ALL: [Self; [$($text),*].len()] = [$(Self::$member),*];

            /// Its name.
            #[must_use]
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$member => $text,)*
                }
            }
        }
    };
}
