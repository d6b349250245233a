package bench

import "hairpin/lab"

// usedBy returns the usage of every daemon of a side.
func usedBy(s *side) (map[string]lab.Usage, error) {
	m := map[string]lab.Usage{}
	for _, name := range s.all {
		u, err := s.node.Used(name)
		if err != nil {
			return nil, err
		}
		m[name] = u
	}
	return m, nil
}

func sum(m map[string]lab.Usage) (total lab.Usage) {
	for _, u := range m {
		total.CPU += u.CPU
		total.RSS += u.RSS
	}
	return total
}
