ARGS=(
  --num-layers 32
  --hidden-size 4096
echo "the array does not close
