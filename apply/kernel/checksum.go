package kernel

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
)

// Commands of SIOCETHTOOL (linux/ethtool.h): does the link compute checksums of what the kernel sends?
const (
	getTxChecksum = 0x16
	setTxChecksum = 0x17
)

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct{ command, data uint32 }

// ethtoolRequest is a struct ifreq whose union is a pointer.
type ethtoolRequest struct {
	name [unix.IFNAMSIZ]byte
	data *ethtoolValue
	_    [16]byte // the rest of the union
}

// checksums reports whether the kernel computes checksums itself before a link has a packet.
func (t *Target) checksums(link string) (bool, error) {
	v, err := t.ethtool(link, ethtoolValue{command: getTxChecksum})
	return v.data == 0, err
}

// computeChecksums makes the kernel do so.
func (t *Target) computeChecksums(link string) error {
	_, err := t.ethtool(link, ethtoolValue{command: setTxChecksum})
	return err
}

func (t *Target) ethtool(link string, v ethtoolValue) (ethtoolValue, error) {
	err := inside.Do(t.config.NetNS, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer func() { _ = unix.Close(fd) }()
		r := ethtoolRequest{data: &v}
		copy(r.name[:unix.IFNAMSIZ-1], link)
		if _, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r))); no != 0 {
			return os.NewSyscallError("ioctl", no)
		}
		return nil
	})
	if err != nil {
		return v, fmt.Errorf("ethtool of %s: %w", link, err)
	}
	return v, nil
}
