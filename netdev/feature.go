package netdev

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nameLength is ETH_GSTRING_LEN, nameSet ETH_SS_FEATURES.
const nameLength, nameSet = 32, 4

// SetFeatures acts as `ethtool -K NAME FEATURE on|off …`, with the kernel's names of features, all
// at once. A feature that the kernel or the device does not have, or cannot change, stays
// unchanged.
func SetFeatures(name string, on map[string]bool) error {
	return withFeatures(name, func(fd int, features []string) error {
		// struct ethtool_sfeatures: for each 32 features, which ones and their values
		words := make([]uint32, 2+(len(features)+31)/32*2)
		words[0], words[1] = unix.ETHTOOL_SFEATURES, uint32((len(features)+31)/32)
		for i, feature := range features {
			value, wanted := on[feature]
			if !wanted {
				continue
			}
			words[2+i/32*2] |= 1 << (i % 32)
			if value {
				words[3+i/32*2] |= 1 << (i % 32)
			}
		}
		return ethtool(fd, name, unsafe.Pointer(&words[0]))
	})
}

// Feature reports whether a feature of a device is on. One that the kernel does not know is off.
func Feature(name, feature string) (on bool, err error) {
	err = withFeatures(name, func(fd int, features []string) error {
		// struct ethtool_gfeatures: for each 32 features four words; the third has the active ones
		words := make([]uint32, 2+(len(features)+31)/32*4)
		words[0], words[1] = unix.ETHTOOL_GFEATURES, uint32((len(features)+31)/32)
		if err := ethtool(fd, name, unsafe.Pointer(&words[0])); err != nil {
			return err
		}
		if i := slices.Index(features, feature); i >= 0 {
			on = words[2+i/32*4+2]&(1<<(i%32)) != 0
		}
		return nil
	})
	return on, err
}

// withFeatures calls do with the kernel's names of features, indexed by their numbers.
func withFeatures(name string, do func(fd int, features []string) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("ethtool %s: %w", name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	count := struct {
		command, _ uint32
		sets       uint64
		length     uint32
	}{command: unix.ETHTOOL_GSSET_INFO, sets: 1 << nameSet}
	if err := ethtool(fd, name, unsafe.Pointer(&count)); err != nil {
		return err
	}
	n := int(count.length)
	names := make([]byte, 12+n*nameLength) // struct ethtool_gstrings
	for i, v := range []uint32{unix.ETHTOOL_GSTRINGS, nameSet, count.length} {
		binary.NativeEndian.PutUint32(names[4*i:], v)
	}
	if err := ethtool(fd, name, unsafe.Pointer(&names[0])); err != nil {
		return err
	}
	features := make([]string, n)
	for i := range features {
		feature, _, _ := bytes.Cut(names[12+i*nameLength:][:nameLength], []byte{0})
		features[i] = string(feature)
	}
	return do(fd, features)
}

// ethtool executes a command, whose number is at the start of data.
func ethtool(fd int, name string, data unsafe.Pointer) error {
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: data}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("ethtool %s: %w", name, errno)
	}
	return nil
}
