package knft

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// oldest is the oldest nft that is known to print and take what datapath/nft writes: that of Debian 12.
var oldest = []int{1, 0, 6}

// checkVersion reads the answer to `nft --version`, "nftables v1.0.6 (Lester Gooch #5)".
func checkVersion(answer string) error {
	for _, w := range strings.Fields(answer) {
		number, isVersion := strings.CutPrefix(w, "v")
		if !isVersion {
			continue
		}
		var found []int
		for _, part := range strings.Split(number, ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				return fmt.Errorf("nft --version says %q: not a version", strings.TrimSpace(answer))
			}
			found = append(found, n)
		}
		if slices.Compare(found, oldest) < 0 {
			return fmt.Errorf("nft %s is too old: 1.0.6 or newer is needed", number)
		}
		return nil
	}
	return fmt.Errorf("nft --version says %q: no version in it", strings.TrimSpace(answer))
}
