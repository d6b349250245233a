package chaos

import (
	"context"
	"fmt"
	"time"
)

// fill mounts a small file system with the files of a directory over it, if that is not done yet,
// and writes a file until no byte is free.
const fill = `set -e
if [ "$(stat -f -c %%T %[1]s)" != tmpfs ]; then
	mkdir -p /tmp/small
	mount -t tmpfs -o size=16m tmpfs /tmp/small
	cp -a %[1]s/. /tmp/small
	mount --bind /tmp/small %[1]s
	umount /tmp/small
fi
! cat /dev/zero >%[1]s/fill 2>/dev/null`

// fillDisk fills the disk of databases, and restarts their servers: their open files are on another
// disk. The end of the fault frees the disk.
func fillDisk(pattern, dir string) func(context.Context, *run, Fault) (undo, error) {
	return func(ctx context.Context, r *run, f Fault) (undo, error) {
		n, err := r.node(f.Node)
		if err != nil {
			return nil, err
		}
		if _, err := execInDaemon(ctx, n, pattern, "sh", "-c", fmt.Sprintf(fill, dir)); err != nil {
			return nil, err
		}
		free := func(ctx context.Context) error {
			return retry(ctx, 100*time.Millisecond, func(ctx context.Context) error { // the daemon may just be starting
				_, err := execInDaemon(ctx, n, pattern, "rm", "-f", dir+"/fill")
				return err
			})
		}
		_, err = signal(ctx, n, pattern, "KILL")
		return free, err
	}
}
