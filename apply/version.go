package apply

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// NeedVersion returns an error that names both versions when a program is older than the oldest
// supported one, such as "25.03".
func NeedVersion(program, version, oldest string) error {
	have, known := numbers(version)
	need, _ := numbers(oldest)
	switch {
	case !known:
		return fmt.Errorf("%s reports %q, which is no version; %s or newer is needed", program, version, oldest)
	case slices.Compare(have, need) < 0:
		return fmt.Errorf("%s %s is running; %s or newer is needed", program, version, oldest)
	}
	return nil
}

// numbers parses a version such as "3.5.1", which has at least two numbers.
func numbers(version string) ([]int, bool) {
	var list []int
	for _, part := range strings.Split(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, false
		}
		list = append(list, n)
	}
	return list, len(list) >= 2
}
