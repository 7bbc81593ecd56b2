//! Every Linux interface pagemill uses, one file each.
