module rljob.dev/tools/cluster/pause

go 1.24.0
