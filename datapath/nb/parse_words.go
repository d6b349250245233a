package nb

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/shell"
)

// ParsePrefix reads a prefix, or an address as a full-length prefix: OVN takes both where it takes one.
func ParsePrefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	if a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q has a zone", s)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// parseProtocol reads the column protocol of a load balancer.
func parseProtocol(s string) (cluster.Protocol, error) {
	for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		if p.String() == s {
			return p, nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %q", s)
}

// parsePriority reads the column priority of a policy or a QoS row.
func parsePriority(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 32767 {
		return 0, fmt.Errorf("%q is not a priority from 0 to 32767", s)
	}
	return n, nil
}

// setting is COLUMN[:KEY]=VALUE without its quotes.
type setting struct{ column, key, value string }

func parseSetting(w string) (s setting, err error) {
	n := strings.IndexAny(w, ":=")
	if n <= 0 {
		return s, fmt.Errorf("%q is not COLUMN[:KEY]=VALUE", w)
	}
	s.column = w[:n]
	rest := w[n:]
	if rest[0] == ':' {
		if s.key, rest, err = token(rest[1:]); err != nil {
			return s, err
		}
		if s.key == "" {
			return s, fmt.Errorf("%q has an empty key", w)
		}
	}
	if !strings.HasPrefix(rest, "=") {
		return s, fmt.Errorf("%q is not COLUMN[:KEY]=VALUE", w)
	}
	s.value, err = whole(rest[1:])
	return s, err
}

// whole reads a value that is the whole of s.
func whole(s string) (string, error) {
	v, rest, err := token(s)
	if err == nil && rest != "" {
		err = fmt.Errorf("%q must be quoted", s)
	}
	return v, err
}

// set reads a column value that is a set of strings.
func set[T any](s string, parse func(string) (T, error)) ([]T, error) {
	var list []T
	for {
		v, rest, err := token(s)
		if err != nil {
			return nil, err
		}
		x, err := parse(v)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
		if rest == "" {
			return list, nil
		}
		if rest[0] != ',' {
			return nil, fmt.Errorf("want a comma at %q", rest)
		}
		s = rest[1:]
	}
}

// setOptions reads "set TABLE NAME COLUMN:KEY=VALUE …".
func setOptions(a []string, t Table, name, column string, m *map[string]string) error {
	if len(a) < 3 || a[0] != t.String() || a[1] != name {
		return fmt.Errorf("want %s %s %s:KEY=VALUE", t, shell.Word(name), column)
	}
	for _, w := range a[2:] {
		s, err := parseSetting(w)
		if err != nil {
			return err
		}
		if s.column != column || s.key == "" {
			return fmt.Errorf("unknown column in %q", w)
		}
		put(m, s.key, s.value)
	}
	return nil
}

// pairs reads KEY=VALUE words that have no database quoting.
func pairs(m *map[string]string, list []string) error {
	for _, w := range list {
		k, v, found := strings.Cut(w, "=")
		if !found || k == "" {
			return fmt.Errorf("%q is not KEY=VALUE", w)
		}
		put(m, k, v)
	}
	return nil
}

func parseAll[T any](s string, parse func(string) (T, error)) ([]T, error) {
	var list []T
	for w := range strings.SplitSeq(s, ",") {
		x, err := parse(w)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

// count checks the number of arguments; most < 0 is any.
func count(a []string, least, most int) error {
	switch {
	case len(a) < least:
		return fmt.Errorf("%d arguments, want at least %d", len(a), least)
	case most >= 0 && len(a) > most:
		return fmt.Errorf("unknown word %q", a[most])
	}
	return nil
}

// named checks that a command has at least n arguments of which the first is the row's name.
func named(a []string, name string, n int) error {
	if err := count(a, n, -1); err != nil {
		return err
	}
	if a[0] != name {
		return fmt.Errorf("another row %q in one line", a[0])
	}
	return nil
}

func put(m *map[string]string, k, v string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[k] = v
}
