package flow

import (
	"strconv"

	"hairpin/claims"
)

// defaultPriority is the priority of a flow without one in its text (ovs-ofctl(8)).
const defaultPriority = 32768

// String returns the flow in ovs-ofctl's syntax, without the owner.
func (f *Flow) String() string { return string(f.Append(nil)) }

// String returns table, priority and match in ovs-ofctl's syntax.
func (k Key) String() string { return string(k.append(nil)) }

// String returns the match in ovs-ofctl's syntax, "" if it matches everything.
func (m Match) String() string { return string(m.append(nil, "")) }

// Cookie returns the flow's cookie: the feature in the upper half, claims.Cookie in the lower.
func (f *Flow) Cookie() uint64 { return uint64(f.Feature)<<32 | claims.Cookie }

// unknown returns the flow's UnknownActions, if it has them.
func (f *Flow) unknown() (u UnknownActions, is bool) {
	if len(f.Actions) == 1 {
		u, is = f.Actions[0].(UnknownActions)
	}
	return u, is
}

// Append appends the text that String returns.
func (f *Flow) Append(b []byte) []byte {
	b = append(b, "cookie=0x"...)
	b = strconv.AppendUint(b, f.Cookie(), 16)
	b = append(b, ',')
	b = f.Key.append(b)
	if u, ok := f.unknown(); ok && u.Attributes != "" {
		b = append(append(b, ','), u.Attributes...)
	}
	b = append(b, " actions="...)
	return appendActions(b, f.Actions)
}

func (k *Key) append(b []byte) []byte {
	b = append(b, "table="...)
	b = strconv.AppendUint(b, uint64(k.Table), 10)
	b = append(b, ",priority="...)
	b = strconv.AppendUint(b, uint64(k.Priority), 10)
	return k.Match.append(b, ",")
}

// String returns ct_state's value: "+est-inv+trk".
func (c CTState) String() string { return string(c.append(nil)) }

func (c CTState) append(b []byte) []byte {
	for i, name := range ctBits {
		switch bit := CTBits(1) << i; {
		case c.Set&bit != 0:
			b = append(append(b, '+'), name...)
		case c.Clear&bit != 0:
			b = append(append(b, '-'), name...)
		}
	}
	return b
}

// appendPort writes a port as ovs-ofctl does: quoted unless it is a plain word or a number.
func appendPort(b []byte, port string) []byte {
	switch {
	case isNumber(port) || isWord(port):
		return append(b, port...)
	case hasEscapes(port):
		return strconv.AppendQuote(b, port)
	}
	return append(append(append(b, '"'), port...), '"')
}

// hasEscapes reports whether a quoted text may need escapes, which is cheaper than quoting it.
func hasEscapes(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return true
		}
	}
	return false
}

func isNumber(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

func isWord(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
