package kernel

import (
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/netdev"
)

// checksums reports whether the kernel computes checksums in software before it sends on a link.
func (t *Target) checksums(link string) (computed bool, err error) {
	err = inside.Do(t.config.NetNS, func() error {
		offloaded, err := netdev.Ethtool(link, unix.ETHTOOL_GTXCSUM, 0)
		computed = offloaded == 0
		return err
	})
	return computed, err
}

// computeChecksums makes the kernel compute a link's checksums in software.
func (t *Target) computeChecksums(link string) error {
	return inside.Do(t.config.NetNS, func() error {
		_, err := netdev.Ethtool(link, unix.ETHTOOL_STXCSUM, 0)
		return err
	})
}
