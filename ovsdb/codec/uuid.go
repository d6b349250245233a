package codec

// UUID identifies a row: either the real UUID, in lower-case text form, or one that is valid within
// a single transaction. The zero UUID identifies no row.
type UUID string

// Named reports whether u is valid within one transaction only.
func (u UUID) Named() bool { return u != "" && !IsUUID(string(u)) }

// IsUUID reports whether s is a UUID in the only form that ovsdb-server sends: 36 lower-case
// characters.
func IsUUID[S string | []byte](s S) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}
