# cmake -DIN=file -DOUT=file.c -DNAME=symbol -P DpEmbed.cmake: the bytes of a file as a C array.

file(READ "${IN}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE "${OUT}" "#include <stddef.h>\n\nextern const unsigned char ${NAME}[];\n\
extern const size_t ${NAME}_count;\nconst unsigned char ${NAME}[] = {${bytes}};\n\
const size_t ${NAME}_count = sizeof(${NAME});\n")
